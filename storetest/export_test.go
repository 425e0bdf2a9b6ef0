package storetest

import "testing"

// RunOnly runs one case, such as "Append/StaleHead", as t itself.
func RunOnly(t *testing.T, name string, h Harness) {
	for _, s := range suites {
		for _, c := range s.cases {
			if s.name+"/"+c.name == name {
				runCase(t, c, h, Options{})
				return
			}
		}
	}
	t.Fatalf("no case %s", name)
}

// CaseNames returns the names of all cases.
func CaseNames() (names []string) {
	for _, s := range suites {
		for _, c := range s.cases {
			names = append(names, s.name+"/"+c.name)
		}
	}
	return names
}

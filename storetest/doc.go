// Package storetest proves that a store keeps the contract of checkpointdb.
//
// # How to adopt it
//
// Write a [Harness], which opens the store over data of its own, and run all
// suites from one test. For a store that keeps its data in a directory:
//
//	type harness struct {
//		dir   string
//		store *mystore.Store
//	}
//
//	func (h *harness) Open(s storetest.Settings) (checkpointdb.CheckpointStore, error) {
//		store, err := mystore.Open(h.dir, s.Clock, s.LeaseDuration, s.RenewAfter)
//		h.store = store
//		return store, err
//	}
//
//	func (h *harness) Close() error { return h.store.Close() }
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, func(t *testing.T) storetest.Harness {
//			return &harness{dir: t.TempDir()}
//		}, nil)
//	}
//
// Every case runs as a named subtest on a harness of its own, such as
// TestStore/Append/StaleHead. A case that fails prints the sentence of the
// contract that was broken. A case for a capability that the store lacks
// (checkpointdb.Forker and the others) is skipped and says so, and a store that
// keeps nothing when it is closed says why in [Options].
//
// The clock of the store is the case's: it stands still until the case moves
// it, so nothing here sleeps and nothing depends on the machine's speed.
//
// After each case the suite counts the references anew from the listed
// checkpoints and compares, and looks whether Get, List and Head agree. A store
// with a method Check(context.Context) error is asked to check itself as well,
// at the end of each case and before each reopening.
//
// # How to add a case
//
// Add a line to the table of its suite: a name, the sentence of the contract
// that it proves, and a function of the env. Use env.refused for calls that must
// fail, because it also proves that they change nothing. Then add a store that
// breaks just this sentence to the table in wrongstores_test.go: a case that no
// store can fail proves nothing.
package storetest

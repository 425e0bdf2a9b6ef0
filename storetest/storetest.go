package storetest

import (
	"context"
	"testing"
	"time"

	"checkpointdb"
)

// Harness opens the store under test over data of its own. The suites make one
// harness for each case and use it from one goroutine.
type Harness interface {
	// Open opens the store: an empty one at the first call, and after a Close
	// one with everything that the store had acknowledged before. The suites
	// call it again only after Close, with equal settings.
	Open(Settings) (checkpointdb.CheckpointStore, error)

	// Close closes the store that Open returned last. It is the last call of a
	// case unless Open follows, and it removes nothing.
	Close() error
}

// Settings is how the suites want a store opened.
type Settings struct {
	Clock         func() time.Time // safe for concurrent use
	LeaseDuration time.Duration
	RenewAfter    time.Duration
}

// Options holds the few legitimate differences between stores. The zero value
// is a store that keeps every promise.
type Options struct {
	// Volatile says why the store keeps nothing when it is closed. Empty means
	// that it keeps everything. Otherwise cases that reopen the store are
	// skipped with this reason.
	Volatile string
}

// Run runs every case of every suite against the stores of newHarness, each as
// a subtest. A newHarness that calls t.Parallel lets them run side by side. Nil
// options are the zero Options.
func Run(t *testing.T, newHarness func(t *testing.T) Harness, o *Options) {
	if o == nil {
		o = &Options{}
	}
	for _, s := range suites {
		t.Run(s.name, func(t *testing.T) {
			for _, c := range s.cases {
				t.Run(c.name, func(t *testing.T) { runCase(t, c, newHarness(t), *o) })
			}
		})
	}
}

type suite struct {
	name  string
	cases []testCase
}

// testCase proves one sentence of the contract.
type testCase struct {
	name string
	rule string // the sentence, printed when the case fails
	run  func(e *env)
}

var suites = []suite{
	{"IDs", idCases},
	{"Append", appendCases},
	{"DeleteHead", deleteHeadCases},
	{"Get", getCases},
	{"List", listCases},
	{"BlobReferences", referenceCases},
	{"Lease", leaseCases},
	{"Values", valueCases},
	{"Context", contextCases},
	{"Concurrency", concurrencyCases},
	{"Reopen", reopenCases},
	{"Fork", forkCases},
	{"DeleteCheckpoints", deleteCheckpointsCases},
	{"Prune", pruneCases},
	{"Instances", instanceCases},
	{"Transcripts", transcriptCases},
	{"DeleteThread", deleteThreadCases},
}

func runCase(t *testing.T, c testCase, h Harness, o Options) {
	defer func() {
		if t.Failed() {
			t.Logf("broken rule: %s", c.rule)
		}
	}()
	e := newEnv(t, h, o)
	defer e.close()
	c.run(e)
	e.verify()
}

// checker is the optional method by which a store checks itself.
type checker interface {
	Check(ctx context.Context) error
}

package storetest

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"checkpointdb"
)

var contextCases = []testCase{
	{"Done", "A context that is already done gives its error, and nothing is read or written.", func(e *env) {
		w := e.acquire("t")
		source := e.acquire("source")
		e.chain(w, "c1", "c2", "c3")
		e.chain(source, "s1")
		fork := e.acquire("fork")
		done, cancel := context.WithCancel(e.Context())
		cancel()

		calls := map[string]func() error{
			"Get":            func() error { _, err := e.store.Get(done, "c1"); return err },
			"List":           func() error { _, err := collect(e.store.List(done, "t")); return err },
			"Head":           func() error { _, err := e.store.Head(done, "t"); return err },
			"Append":         func() error { return e.store.Append(done, w, e.checkpoint("t", "c4", "c3"), "c3") },
			"DeleteHead":     func() error { return e.store.DeleteHead(done, w, "c3") },
			"AcquireWriter":  func() error { _, err := e.store.AcquireWriter(done, "new"); return err },
			"Renew":          func() error { _, err := e.store.Renew(done, w); return err },
			"Release":        func() error { return e.store.Release(done, w) },
			"BlobReferences": func() error { _, err := collect(e.store.BlobReferences(done)); return err },
		}
		if s, ok := e.store.(checkpointdb.Forker); ok {
			calls["Fork"] = func() error {
				_, err := s.Fork(done, fork, checkpointdb.ForkRequest{
					SourceThreadID: "source", SourceCheckpointID: "s1",
					DestinationThreadID: "fork", DestinationCheckpointID: "f1", CreatedAt: time.UnixMilli(1),
				})
				return err
			}
		}
		if s, ok := e.store.(checkpointdb.Pruner); ok {
			calls["DeleteCheckpoints"] = func() error { _, err := s.DeleteCheckpoints(done, w, 1); return err }
		}
		if s, ok := e.store.(checkpointdb.PolicyPruner); ok {
			calls["Prune"] = func() error {
				_, err := s.Prune(done, w, checkpointdb.PrunePolicy{KeepLast: 1})
				return err
			}
		}
		instance := checkpointdb.Instance{Key: "k", ThreadID: "t", UpdatedAt: time.UnixMilli(1)}
		if s, ok := e.store.(checkpointdb.InstanceStore); ok {
			if err := s.UpsertInstance(e.Context(), instance); err != nil {
				e.Fatalf("UpsertInstance: %v", err)
			}
			calls["GetInstance"] = func() error { _, err := s.GetInstance(done, "k"); return err }
			calls["UpsertInstance"] = func() error {
				return s.UpsertInstance(done, checkpointdb.Instance{Key: "k", ThreadID: "other", UpdatedAt: time.UnixMilli(1)})
			}
			calls["DeleteInstance"] = func() error { return s.DeleteInstance(done, "k") }
		}
		if s, ok := e.store.(checkpointdb.Transcripts); ok {
			calls["LoadThread"] = func() error { _, err := s.LoadThread(done, "t"); return err }
			calls["SaveThread"] = func() error { return s.SaveThread(done, "t", []json.RawMessage{json.RawMessage("1")}) }
		}
		if s, ok := e.store.(checkpointdb.ThreadDeleter); ok {
			calls["DeleteThread"] = func() error { return s.DeleteThread(done, w) }
		}

		before := e.look()
		for method, call := range calls {
			if err := call(); !errors.Is(err, context.Canceled) {
				e.Errorf("%s: got error %v, want %v", method, err, context.Canceled)
			}
		}
		e.wantEqual("the store", e.look(), before)
		e.chain(w, "c4") // neither released nor deleted
		if w := e.acquire("new"); w.Fence != 1 {
			e.Errorf("a refused AcquireWriter has used up fence %d", w.Fence-1)
		}
		if s, ok := e.store.(checkpointdb.InstanceStore); ok {
			got, err := s.GetInstance(e.Context(), "k")
			if err != nil {
				e.Fatalf("GetInstance: %v", err)
			}
			e.wantEqual("instance", got, instance)
		}
	}},
}

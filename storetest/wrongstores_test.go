package storetest_test

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf16"

	"checkpointdb"
)

// wrongStores are made to be caught. Each breaks one promise and names the cases
// that must notice.
var wrongStores = []wrongStore{
	// Ids.
	{"UnknownForInvalidThread", "IDs/Thread", func(s *store, right *rightStore) {
		s.head = func(ctx context.Context, t threadID) (checkpointID, error) {
			head, err := right.Head(ctx, t)
			return head, forgive(err, checkpointdb.ErrInvalidID)
		}
	}},
	{"NotFoundForInvalidID", "IDs/Checkpoint", func(s *store, right *rightStore) {
		s.get = func(ctx context.Context, id checkpointID) (checkpoint, error) {
			c, err := right.Get(ctx, id)
			if err != nil {
				err = failure(checkpointdb.ErrCheckpointNotFound)
			}
			return c, err
		}
	}},
	{"PrefixOnIDs", "IDs/Lengths", func(s *store, right *rightStore) {
		s.append = func(ctx context.Context, w writer, c checkpoint, expected checkpointID) error {
			if len(c.ThreadID)+len(c.ID)+1 > checkpointdb.MaxIDBytes {
				return errors.New("key too large")
			}
			return right.Append(ctx, w, c, expected)
		}
	}},
	{"ListByPrefix", "IDs/AnyUnicode IDs/NoSeparator List/Threads", func(s *store, right *rightStore) {
		threads := s.holders()
		s.list = func(ctx context.Context, t threadID) iter.Seq2[checkpoint, error] {
			var found []checkpoint
			for other := range threads {
				if strings.HasPrefix(string(other), string(t)) || strings.HasPrefix(string(t), string(other)) || t == "a" {
					found = append(found, all(right.List(ctx, other))...)
				}
			}
			return each(found)
		}
	}},

	// Append.
	{"HeadIsFirst", "Append/ExtendsChain", func(s *store, right *rightStore) {
		s.head = func(ctx context.Context, t threadID) (checkpointID, error) {
			for c, err := range right.List(ctx, t) {
				return c.ID, err
			}
			return right.Head(ctx, t)
		}
	}},
	{"TimeBeforeIDs", "Append/Order", func(s *store, right *rightStore) {
		s.append = func(ctx context.Context, w writer, c checkpoint, expected checkpointID) error {
			if err := checkpointdb.ValidateTime("createdAt", c.CreatedAt); err != nil {
				return err
			}
			return right.Append(ctx, w, c, expected)
		}
	}},
	{"ExpectedHeadLast", "Append/IDsFirst", func(s *store, right *rightStore) {
		s.append = func(ctx context.Context, w writer, c checkpoint, expected checkpointID) error {
			if expected != "" && expected.Validate() != nil {
				return cmp.Or(right.Append(ctx, w, c, "none"), expected.Validate())
			}
			return right.Append(ctx, w, c, expected)
		}
	}},
	{"AnyTime", "Append/CreatedAt", func(s *store, _ *rightStore) {
		s.onAppend(func(c *checkpoint, _ *checkpointID) {
			if c.CreatedAt.IsZero() {
				c.CreatedAt = time.UnixMilli(0)
			}
		})
	}},
	{"MendsTexts", "Append/Texts", func(s *store, _ *rightStore) {
		s.onAppend(func(c *checkpoint, _ *checkpointID) { c.Label = strings.ToValidUTF8(c.Label, "\ufffd") })
	}},
	{"AnyFiles", "Append/Files", func(s *store, _ *rightStore) {
		s.onAppend(func(c *checkpoint, _ *checkpointID) {
			if checkpointdb.ValidateFiles(c.Files) != nil {
				c.Files = nil
			}
		})
	}},
	{"AnyArtifacts", "Append/Artifacts", func(s *store, _ *rightStore) {
		s.onAppend(func(c *checkpoint, _ *checkpointID) {
			alone := checkpoint{ID: "a", ThreadID: "a", CreatedAt: time.UnixMilli(0), Reason: checkpointdb.ReasonNamed, Artifacts: c.Artifacts}
			if alone.Validate() != nil {
				c.Artifacts = nil
			}
		})
	}},
	{"AnyMessages", "Append/Conversation", func(s *store, _ *rightStore) {
		s.onAppend(func(c *checkpoint, _ *checkpointID) {
			if checkpointdb.ValidateMessages("", c.Conversation) != nil {
				c.Conversation = nil
			}
		})
	}},
	{"AnyThreadsWriter", "Append/OtherThread", func(s *store, _ *rightStore) {
		holders, inner := s.holders(), s.append
		s.append = func(ctx context.Context, w writer, c checkpoint, expected checkpointID) error {
			return inner(ctx, holders[c.ThreadID], c, expected)
		}
	}},
	{"IgnoresFence", "Append/Fence Fork/Writer DeleteThread/WriterLost", func(s *store, _ *rightStore) {
		holders := s.holders()
		s.onWriter(func(w *writer) { w.Fence = holders[w.ThreadID].Fence })
	}},
	{"IgnoresToken", "Append/Token Lease/ReleaseOfOther", func(s *store, _ *rightStore) {
		holders := s.holders()
		s.onWriter(func(w *writer) { w.OwnerToken = holders[w.ThreadID].OwnerToken })
	}},
	{"NoRelease", "Append/NoLease Lease/Release", func(s *store, _ *rightStore) {
		s.release = func(context.Context, writer) error { return nil }
	}},
	{"IDsPerThread", "Append/DuplicateID", func(s *store, right *rightStore) {
		s.append = func(ctx context.Context, w writer, c checkpoint, expected checkpointID) error {
			if used, err := right.Get(ctx, c.ID); err == nil && used.ThreadID != c.ThreadID {
				c.ID += "'"
			}
			return right.Append(ctx, w, c, expected)
		}
	}},
	{"StaleBeforeDuplicate", "Append/DuplicateBeforeStale Append/Order", func(s *store, right *rightStore) {
		s.append = func(ctx context.Context, w writer, c checkpoint, expected checkpointID) error {
			err := right.Append(ctx, w, c, expected)
			if head, _ := right.Head(ctx, c.ThreadID); errors.Is(err, checkpointdb.ErrDuplicateID) && head != expected {
				return failure(checkpointdb.ErrStaleHead)
			}
			return err
		}
	}},
	{"NeverStale", "Append/StaleHead", func(s *store, right *rightStore) {
		s.onAppend(func(c *checkpoint, expected *checkpointID) {
			if head, err := right.Head(context.Background(), c.ThreadID); err == nil && c.ParentCheckpointID == *expected {
				*expected, c.ParentCheckpointID = head, head
			}
		})
	}},
	{"AnyParent", "Append/ParentMismatch", func(s *store, _ *rightStore) {
		s.onAppend(func(c *checkpoint, expected *checkpointID) { c.ParentCheckpointID = *expected })
	}},

	// DeleteHead.
	{"DeletedCanBeGot", "DeleteHead/MovesToParent DeleteCheckpoints/KeepsNewest DeleteThread/RemovesAll", func(s *store, right *rightStore) {
		appended := map[checkpointID]checkpoint{}
		s.onAppend(func(c *checkpoint, _ *checkpointID) { appended[c.ID] = c.Clone() })
		s.get = func(ctx context.Context, id checkpointID) (checkpoint, error) {
			if c, ok := appended[id]; ok {
				return c.Clone(), nil
			}
			return right.Get(ctx, id)
		}
	}},
	{"HeadBeforeWriter", "DeleteHead/Order", func(s *store, right *rightStore) {
		s.deleteHead = func(ctx context.Context, w writer, id checkpointID) error {
			if head, err := right.Head(ctx, w.ThreadID); err == nil && id != "" && head != id {
				return failure(checkpointdb.ErrNotHead)
			}
			return right.DeleteHead(ctx, w, id)
		}
	}},
	{"NotHeadIsFine", "DeleteHead/NotHead", func(s *store, right *rightStore) {
		s.deleteHead = func(ctx context.Context, w writer, id checkpointID) error {
			return forgive(right.DeleteHead(ctx, w, id), checkpointdb.ErrNotHead)
		}
	}},

	// Get, List, BlobReferences.
	{"ZeroForMissing", "Get/Missing", func(s *store, right *rightStore) {
		s.get = func(ctx context.Context, id checkpointID) (checkpoint, error) {
			c, err := right.Get(ctx, id)
			return c, forgive(err, checkpointdb.ErrCheckpointNotFound)
		}
	}},
	{"SortsFiles", "Get/Whole", func(s *store, _ *rightStore) {
		s.onRead(func(c *checkpoint) {
			slices.SortFunc(c.Files, func(a, b checkpointdb.Entry) int { return cmp.Compare(a.Path, b.Path) })
		})
	}},
	{"DropsExecutable", "Get/Whole", func(s *store, _ *rightStore) {
		s.onRead(func(c *checkpoint) {
			for i := range c.Files {
				c.Files[i].Executable = false
			}
		})
	}},
	{"ListByID", "List/CreatedAtThenID", func(s *store, right *rightStore) {
		s.list = func(ctx context.Context, t threadID) iter.Seq2[checkpoint, error] {
			found := all(right.List(ctx, t))
			slices.SortFunc(found, func(a, b checkpoint) int { return cmp.Compare(a.ID, b.ID) })
			return each(found)
		}
	}},
	{"ListByUTF16", "List/IDBytes", func(s *store, right *rightStore) {
		s.list = func(ctx context.Context, t threadID) iter.Seq2[checkpoint, error] {
			found := all(right.List(ctx, t))
			units := func(c checkpoint) []uint16 { return utf16.Encode([]rune(string(c.ID))) }
			slices.SortFunc(found, func(a, b checkpoint) int {
				return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), slices.Compare(units(a), units(b)))
			})
			return each(found)
		}
	}},
	{"HeadIsLastListed", "List/HeadIsNotLast Prune/Headless", func(s *store, right *rightStore) {
		s.head = func(ctx context.Context, t threadID) (checkpointID, error) {
			if found := all(right.List(ctx, t)); len(found) > 0 {
				return found[len(found)-1].ID, nil
			}
			return right.Head(ctx, t)
		}
	}},
	{"UnknownIsError", "List/Unknown", func(s *store, right *rightStore) {
		s.list = func(ctx context.Context, t threadID) iter.Seq2[checkpoint, error] {
			if found := all(right.List(ctx, t)); len(found) > 0 {
				return each(found)
			}
			return func(yield func(checkpoint, error) bool) {
				yield(checkpoint{}, failure(checkpointdb.ErrCheckpointNotFound))
			}
		}
	}},
	{"WritesEndLoops", "List/CallsStore BlobReferences/CallsStore Concurrency/ReadWhileWriting", func(s *store, right *rightStore) {
		var writes atomic.Int64
		s.append = func(ctx context.Context, w writer, c checkpoint, expected checkpointID) error {
			writes.Add(1)
			return right.Append(ctx, w, c, expected)
		}
		s.list = func(ctx context.Context, t threadID) iter.Seq2[checkpoint, error] {
			return untilWrite(&writes, right.List(ctx, t))
		}
		s.references = func(ctx context.Context) iter.Seq2[reference, error] {
			return untilWrite(&writes, right.BlobReferences(ctx))
		}
	}},
	{"ListsWhatComes", "List/IDsTakenAtStart", func(s *store, right *rightStore) {
		s.list = func(ctx context.Context, t threadID) iter.Seq2[checkpoint, error] {
			return func(yield func(checkpoint, error) bool) {
				done := map[checkpointID]bool{}
				for range 2 {
					for c, err := range right.List(ctx, t) {
						if !done[c.ID] && !yield(c, err) {
							return
						}
						done[c.ID] = true
					}
				}
			}
		}
	}},
	{"ListsDeleted", "List/DeletedBeforeTurn", func(s *store, right *rightStore) {
		s.list = func(ctx context.Context, t threadID) iter.Seq2[checkpoint, error] {
			return each(all(right.List(ctx, t)))
		}
	}},
	{"ListsByIDAlone", "List/DeletedBeforeTurn", func(s *store, right *rightStore) {
		s.list = func(ctx context.Context, t threadID) iter.Seq2[checkpoint, error] {
			return func(yield func(checkpoint, error) bool) {
				for _, c := range all(right.List(ctx, t)) {
					if c, err := right.Get(ctx, c.ID); err == nil && !yield(c, nil) {
						return
					}
				}
			}
		}
	}},
	{"HeadWithoutCount", "BlobReferences/Counts", func(s *store, right *rightStore) {
		counted := []reference{}
		s.append = func(ctx context.Context, w writer, c checkpoint, expected checkpointID) error {
			counted = all(right.BlobReferences(ctx))
			return right.Append(ctx, w, c, expected)
		}
		s.references = func(context.Context) iter.Seq2[reference, error] { return each(counted) }
	}},
	{"ZeroCounts", "BlobReferences/Forgotten", func(s *store, right *rightStore) {
		seen := map[checkpointdb.BlobKey]bool{}
		s.references = func(ctx context.Context) iter.Seq2[reference, error] {
			refs := all(right.BlobReferences(ctx))
			for _, r := range refs {
				seen[r.Key] = true
			}
			for key := range seen {
				if !slices.ContainsFunc(refs, func(r reference) bool { return r.Key == key }) {
					refs = append(refs, reference{Key: key})
				}
			}
			return each(refs)
		}
	}},
	{"CountsEveryUse", "BlobReferences/TwiceInOne", func(s *store, _ *rightStore) {
		s.recount(func(of []checkpoint, counts map[checkpointdb.BlobKey]int64) {
			for _, c := range of {
				for _, f := range c.Files {
					if f.Kind == checkpointdb.KindFile {
						counts[f.BlobKey]++
					}
				}
				for _, a := range c.Artifacts {
					counts[a.BlobKey]++
				}
			}
		})
	}},
	{"CountsRuns", "BlobReferences/ComesAndGoes", func(s *store, _ *rightStore) {
		s.recount(func(of []checkpoint, counts map[checkpointdb.BlobKey]int64) {
			var before []checkpointdb.BlobKey
			for _, c := range of {
				for _, key := range c.BlobKeys() {
					if !slices.Contains(before, key) {
						counts[key]++
					}
				}
				before = c.BlobKeys()
			}
		})
	}},
	{"CountsToALimit", "DeleteHead/Large Prune/HeadlessLarge DeleteThread/Large", func(s *store, _ *rightStore) {
		s.recount(func(of []checkpoint, counts map[checkpointdb.BlobKey]int64) {
			for _, c := range of {
				keys := c.BlobKeys()
				for _, key := range keys[:min(len(keys), 500)] {
					counts[key]++
				}
			}
		})
	}},
	{"FilesBeforeArtifacts", "BlobReferences/Order", func(s *store, right *rightStore) {
		s.references = func(ctx context.Context) iter.Seq2[reference, error] {
			refs := all(right.BlobReferences(ctx))
			slices.Reverse(refs)
			return each(refs)
		}
	}},

	// Leases.
	{"NoRenewAfter", "Lease/Acquire", func(s *store, right *rightStore) {
		s.acquire = func(ctx context.Context, t threadID) (lease, error) {
			l, err := right.AcquireWriter(ctx, t)
			l.RenewAfter = 0
			return l, err
		}
	}},
	{"NoConflictDetail", "Lease/Conflict Reopen/Lease", func(s *store, right *rightStore) {
		s.acquire = func(ctx context.Context, t threadID) (lease, error) {
			l, err := right.AcquireWriter(ctx, t)
			if errors.Is(err, checkpointdb.ErrWriterConflict) {
				err = failure(checkpointdb.ErrWriterConflict)
			}
			return l, err
		}
	}},
	{"ValidAtExpiry", "Lease/LostAtExpiry", func(s *store, right *rightStore) {
		s.append = func(ctx context.Context, w writer, c checkpoint, expected checkpointID) error {
			right.off = -1
			defer func() { right.off = 0 }()
			return right.Append(ctx, w, c, expected)
		}
	}},
	{"RenewedAtExpiry", "Lease/LostAtExpiry Lease/Renew", func(s *store, right *rightStore) {
		s.renew = func(ctx context.Context, w writer) (lease, error) {
			right.off = -1
			defer func() { right.off = 0 }()
			return right.Renew(ctx, w)
		}
	}},
	{"BlocksAtExpiry", "Lease/TakenAtExpiry", func(s *store, right *rightStore) {
		s.acquire = func(ctx context.Context, t threadID) (lease, error) {
			right.off = -1
			defer func() { right.off = 0 }()
			return right.AcquireWriter(ctx, t)
		}
	}},
	{"FenceRestarts", "Lease/FenceGrows", func(s *store, _ *rightStore) {
		restart, release := s.restartFences(), s.release
		s.release = func(ctx context.Context, w writer) error {
			err := release(ctx, w)
			restart(w.ThreadID)
			return err
		}
	}},
	{"RenewAddsToExpiry", "Lease/Renew", func(s *store, right *rightStore) {
		renewals := time.Duration(0)
		s.renew = func(ctx context.Context, w writer) (lease, error) {
			l, err := right.Renew(ctx, w)
			renewals++
			l.ExpiresAt = l.ExpiresAt.Add(renewals * time.Second)
			return l, err
		}
	}},
	{"RenewNeverShortens", "Lease/RenewShortens", func(s *store, right *rightStore) {
		var latest time.Time
		s.acquire = func(ctx context.Context, t threadID) (lease, error) {
			l, err := right.AcquireWriter(ctx, t)
			latest = l.ExpiresAt
			return l, err
		}
		s.renew = func(ctx context.Context, w writer) (lease, error) {
			l, err := right.Renew(ctx, w)
			if l.ExpiresAt.Before(latest) {
				l.ExpiresAt = latest
			}
			return l, err
		}
	}},
	{"SecondReleaseFails", "Lease/Release", func(s *store, right *rightStore) {
		s.release = func(ctx context.Context, w writer) error {
			if _, err := right.Renew(ctx, w); err != nil {
				return err
			}
			return right.Release(ctx, w)
		}
	}},
	{"ReleasesAll", "Lease/Threads", func(s *store, right *rightStore) {
		holders := s.holders()
		s.release = func(ctx context.Context, _ writer) error {
			for _, w := range holders {
				if err := right.Release(ctx, w); err != nil {
					return err
				}
			}
			return nil
		}
	}},
	{"ReleaseDeletes", "Lease/KeepsState", func(s *store, right *rightStore) {
		s.release = func(ctx context.Context, w writer) error {
			return forgive(right.DeleteThread(ctx, w), checkpointdb.ErrWriterLost)
		}
	}},

	// Values and contexts.
	{"RespellsMessages", "Values/Conversation", func(s *store, _ *rightStore) {
		s.onRead(func(c *checkpoint) { c.Conversation = respell(c.Conversation) })
	}},
	{"Milliseconds", "Values/Times", func(s *store, _ *rightStore) {
		s.onRead(func(c *checkpoint) { c.CreatedAt = c.CreatedAt.Truncate(time.Millisecond) })
	}},
	{"LocalTimes", "Values/Times", func(s *store, _ *rightStore) {
		s.onRead(func(c *checkpoint) { c.CreatedAt = c.CreatedAt.In(time.FixedZone("", 3600)) })
	}},
	{"SharesReturned", "Values/ReturnedIsCallers", func(s *store, right *rightStore) {
		read := map[checkpointID]checkpoint{}
		s.get = func(ctx context.Context, id checkpointID) (checkpoint, error) {
			c, err := right.Get(ctx, id)
			if shared, ok := read[id]; ok && err == nil {
				return shared, nil
			}
			read[id] = c
			return c, err
		}
	}},
	{"KeepsPassed", "Values/PassedIsNotKept", func(s *store, _ *rightStore) {
		passed := map[checkpointID]checkpoint{}
		s.onAppend(func(c *checkpoint, _ *checkpointID) { passed[c.ID] = *c })
		s.onRead(func(c *checkpoint) { *c = passed[c.ID] })
	}},
	{"ReusesReturned", "Values/ReturnedStays", func(s *store, right *rightStore) {
		var returned []checkpoint
		s.onRead(func(c *checkpoint) { returned = append(returned, *c) })
		s.deleteHead = func(ctx context.Context, w writer, id checkpointID) error {
			for _, c := range returned {
				clear(c.Files)
			}
			return right.DeleteHead(ctx, w, id)
		}
	}},
	{"CutsFiles", "Values/Large", func(s *store, _ *rightStore) {
		s.onRead(func(c *checkpoint) { c.Files = c.Files[:min(len(c.Files), 1024)] })
	}},
	{"IgnoresContext", "Context/Done", func(s *store, right *rightStore) {
		s.append = func(ctx context.Context, w writer, c checkpoint, expected checkpointID) error {
			return right.Append(context.WithoutCancel(ctx), w, c, expected)
		}
	}},

	// Concurrency.
	{"OneWriterAtATime", "Concurrency/Threads", func(s *store, right *rightStore) {
		var busy sync.Mutex
		s.append = func(ctx context.Context, w writer, c checkpoint, expected checkpointID) error {
			if !busy.TryLock() {
				return failure(checkpointdb.ErrWriterConflict)
			}
			defer busy.Unlock()
			time.Sleep(time.Millisecond)
			return right.Append(ctx, w, c, expected)
		}
	}},
	{"SharesLease", "Concurrency/Acquire", func(s *store, right *rightStore) {
		var given sync.Map
		s.acquire = func(ctx context.Context, t threadID) (lease, error) {
			l, err := right.AcquireWriter(ctx, t)
			if last, ok := given.Load(t); ok && err != nil {
				return last.(lease), nil
			}
			given.Store(t, l)
			return l, err
		}
	}},
	{"LosesTheRace", "Concurrency/OneHead Concurrency/OneID", func(s *store, right *rightStore) {
		s.append = func(ctx context.Context, w writer, c checkpoint, expected checkpointID) error {
			err := right.Append(ctx, w, c, expected)
			return forgive(forgive(err, checkpointdb.ErrStaleHead), checkpointdb.ErrDuplicateID)
		}
	}},
	{"RenewRevives", "Concurrency/RenewRelease", func(s *store, right *rightStore) {
		s.renew = func(ctx context.Context, w writer) (lease, error) {
			l, err := right.Renew(ctx, w)
			if errors.Is(err, checkpointdb.ErrWriterLost) {
				return right.AcquireWriter(ctx, w.ThreadID)
			}
			return l, err
		}
		s.release = func(ctx context.Context, w writer) error {
			err := right.Release(ctx, w)
			time.Sleep(time.Millisecond) // for the renewal
			return err
		}
	}},

	// Reopening.
	{"Forgets", "Reopen/Checkpoints Reopen/Lease Reopen/Fence Fork/Reopen DeleteCheckpoints/Reopen Prune/Reopen Instances/Reopen Transcripts/Reopen DeleteThread/Reopen", func(s *store, right *rightStore) {
		s.reopened = func() {
			fresh, _ := newRightStore(right.settings) // settings that were good before
			*s = *newStore(fresh)
		}
	}},
	{"ForgetsLeases", "Reopen/Lease", func(s *store, right *rightStore) {
		holders := s.holders()
		s.reopened = func() {
			for _, w := range holders {
				_ = right.Release(context.Background(), w)
			}
		}
	}},
	{"ForgetsFences", "Reopen/Fence DeleteThread/Reopen", func(s *store, _ *rightStore) {
		restart, holders := s.restartFences(), s.holders()
		s.reopened = func() {
			for t := range holders {
				restart(t)
			}
		}
	}},
	{"UnmapsReturned", "Reopen/ReturnedStays", func(s *store, _ *rightStore) {
		var returned []checkpoint
		s.onRead(func(c *checkpoint) { returned = append(returned, *c) })
		s.reopened = func() {
			for _, c := range returned {
				clear(c.Conversation)
			}
		}
	}},
	{"UndoesPrune", "DeleteCheckpoints/Reopen", func(s *store, right *rightStore) {
		var before []checkpoint
		s.deleteCheckpoints = func(ctx context.Context, w writer, keep int) ([]checkpointID, error) {
			before = all(right.List(ctx, w.ThreadID))
			return right.DeleteCheckpoints(ctx, w, keep)
		}
		s.reopened = func() {
			s.list = func(context.Context, threadID) iter.Seq2[checkpoint, error] { return each(before) }
		}
	}},
	{"ForgetsHeadOverGap", "Prune/Reopen", func(s *store, right *rightStore) {
		s.reopened = func() {
			s.head = func(ctx context.Context, t threadID) (checkpointID, error) {
				head, err := right.Head(ctx, t)
				if c, _ := right.Get(ctx, head); c.ParentCheckpointID != "" {
					if _, err := right.Get(ctx, c.ParentCheckpointID); err != nil {
						return "", nil
					}
				}
				return head, err
			}
		}
	}},
	{"ForgetsTranscripts", "Fork/Reopen Transcripts/Reopen", func(s *store, _ *rightStore) {
		s.reopened = func() { s.load = func(context.Context, threadID) (messages, error) { return nil, nil } }
	}},

	// Fork.
	{"ForkKeepsLabel", "Fork/Copies", func(s *store, right *rightStore) {
		s.fork = func(ctx context.Context, w writer, r forkRequest) (checkpoint, error) {
			c, err := right.Fork(ctx, w, r)
			source, _ := right.Get(ctx, r.SourceCheckpointID)
			c.Label = source.Label
			return c, err
		}
	}},
	{"ForkSetsNoHead", "Fork/SetsHead", func(s *store, right *rightStore) {
		s.head = func(ctx context.Context, t threadID) (checkpointID, error) {
			head, err := right.Head(ctx, t)
			if c, _ := right.Get(ctx, head); c.Reason == checkpointdb.ReasonForkRoot {
				return "", nil
			}
			return head, err
		}
	}},
	{"ForkStoresNoCheckpoint", "Fork/StoresCheckpoint", func(s *store, right *rightStore) {
		s.fork = func(ctx context.Context, w writer, r forkRequest) (checkpoint, error) {
			c, err := right.Fork(ctx, w, r)
			if err == nil {
				err = right.DeleteHead(ctx, w, c.ID)
			}
			return c, err
		}
	}},
	{"ForkCountsNothing", "Fork/CountsReferences", func(s *store, _ *rightStore) {
		s.recount(func(of []checkpoint, counts map[checkpointdb.BlobKey]int64) {
			for _, c := range of {
				if c.Reason != checkpointdb.ReasonForkRoot {
					for _, key := range c.BlobKeys() {
						counts[key]++
					}
				}
			}
		})
	}},
	{"ForkSavesNoTranscript", "Fork/SavesTranscript Fork/TranscriptStays", func(s *store, right *rightStore) {
		s.fork = func(ctx context.Context, w writer, r forkRequest) (checkpoint, error) {
			c, err := right.Fork(ctx, w, r)
			if err == nil {
				err = right.SaveThread(ctx, w.ThreadID, nil)
			}
			return c, err
		}
	}},
	{"ForkNeedsSource", "Fork/Independent", func(s *store, right *rightStore) {
		sources := map[checkpointID]checkpointID{}
		s.fork = func(ctx context.Context, w writer, r forkRequest) (checkpoint, error) {
			sources[r.DestinationCheckpointID] = r.SourceCheckpointID
			return right.Fork(ctx, w, r)
		}
		s.get = func(ctx context.Context, id checkpointID) (checkpoint, error) {
			if source, ok := sources[id]; ok {
				if _, err := right.Get(ctx, source); err != nil {
					return checkpoint{}, err
				}
			}
			return right.Get(ctx, id)
		}
	}},
	{"ForkChecksWriterFirst", "Fork/Order", func(s *store, right *rightStore) {
		s.fork = func(ctx context.Context, w writer, r forkRequest) (checkpoint, error) {
			if _, err := right.Renew(ctx, w); err != nil {
				return checkpoint{}, err
			}
			return right.Fork(ctx, w, r)
		}
	}},
	{"ForkOfInvalidIDs", "Fork/IDs", func(s *store, right *rightStore) {
		s.fork = func(ctx context.Context, w writer, r forkRequest) (checkpoint, error) {
			if r.SourceCheckpointID.Validate() != nil {
				return checkpoint{}, failure(checkpointdb.ErrForkSourceNotFound)
			}
			return right.Fork(ctx, w, r)
		}
	}},
	{"ForkAtAnyTime", "Fork/CreatedAt", func(s *store, right *rightStore) {
		s.fork = func(ctx context.Context, w writer, r forkRequest) (checkpoint, error) {
			if r.CreatedAt.IsZero() {
				r.CreatedAt = time.UnixMilli(0)
			}
			return right.Fork(ctx, w, r)
		}
	}},
	{"ForkFromAnyThread", "Fork/Source", func(s *store, right *rightStore) {
		s.fork = func(ctx context.Context, w writer, r forkRequest) (checkpoint, error) {
			if source, err := right.Get(ctx, r.SourceCheckpointID); err == nil {
				r.SourceThreadID = source.ThreadID
			}
			return right.Fork(ctx, w, r)
		}
	}},
	{"ForkNeedsNoTranscriptOnly", "Fork/DestinationHasCheckpoints", func(s *store, right *rightStore) {
		s.fork = func(ctx context.Context, w writer, r forkRequest) (checkpoint, error) {
			c, err := right.Fork(ctx, w, r)
			if transcript, _ := right.LoadThread(ctx, r.DestinationThreadID); len(transcript) == 0 {
				err = forgive(err, checkpointdb.ErrForkDestinationNotEmpty)
			}
			return c, err
		}
	}},
	{"ForkIntoHeadless", "Fork/DestinationHasTranscript Fork/TranscriptStays Prune/HeadlessFork", func(s *store, right *rightStore) {
		s.fork = func(ctx context.Context, w writer, r forkRequest) (checkpoint, error) {
			c, err := right.Fork(ctx, w, r)
			if head, _ := right.Head(ctx, r.DestinationThreadID); head == "" {
				err = forgive(err, checkpointdb.ErrForkDestinationNotEmpty)
			}
			return c, err
		}
	}},
	{"ForkIntoEmptyTranscript", "Fork/DestinationHasTranscript Transcripts/Reopen", func(s *store, right *rightStore) {
		s.fork = func(ctx context.Context, w writer, r forkRequest) (checkpoint, error) {
			c, err := right.Fork(ctx, w, r)
			transcript, _ := right.LoadThread(ctx, r.DestinationThreadID)
			if len(all(right.List(ctx, r.DestinationThreadID)))+len(transcript) == 0 {
				err = forgive(err, checkpointdb.ErrForkDestinationNotEmpty)
			}
			return c, err
		}
	}},
	{"ForkOfUsedIDIsDuplicate", "Fork/DestinationIDUsed", func(s *store, right *rightStore) {
		s.fork = func(ctx context.Context, w writer, r forkRequest) (checkpoint, error) {
			c, err := right.Fork(ctx, w, r)
			if errors.Is(err, checkpointdb.ErrForkDestinationNotEmpty) {
				err = failure(checkpointdb.ErrDuplicateID)
			}
			return c, err
		}
	}},
	{"RefusedForkLeavesTranscript", "Fork/RefusedLeavesNothing", func(s *store, right *rightStore) {
		s.fork = func(ctx context.Context, w writer, r forkRequest) (checkpoint, error) {
			c, err := right.Fork(ctx, w, r)
			if err != nil {
				source, _ := right.Get(ctx, r.SourceCheckpointID)
				_ = right.SaveThread(ctx, r.DestinationThreadID, source.Conversation)
			}
			return c, err
		}
	}},

	// Pruning.
	{"NewestDeletedFirst", "DeleteCheckpoints/KeepsNewest", func(s *store, right *rightStore) {
		s.deleteCheckpoints = func(ctx context.Context, w writer, keep int) ([]checkpointID, error) {
			gone, err := right.DeleteCheckpoints(ctx, w, keep)
			slices.Reverse(gone)
			return gone, err
		}
	}},
	{"KeepsLastListed", "DeleteCheckpoints/ChainNotTime", func(s *store, right *rightStore) {
		s.deleteCheckpoints = func(ctx context.Context, w writer, keep int) ([]checkpointID, error) {
			listed := all(right.List(ctx, w.ThreadID))
			gone, err := right.DeleteCheckpoints(ctx, w, keep)
			for i := range gone {
				gone[i] = listed[i].ID
			}
			return gone, err
		}
	}},
	{"SkipsEverySecond", "DeleteCheckpoints/Many", func(s *store, right *rightStore) {
		s.deleteCheckpoints = func(ctx context.Context, w writer, keep int) ([]checkpointID, error) {
			gone, err := right.DeleteCheckpoints(ctx, w, keep)
			return slices.DeleteFunc(gone, func(id checkpointID) bool { return id[len(id)-1]%2 == 1 }), err
		}
	}},
	{"NothingToDeleteIsError", "DeleteCheckpoints/MoreThanThere", func(s *store, right *rightStore) {
		s.deleteCheckpoints = func(ctx context.Context, w writer, keep int) ([]checkpointID, error) {
			gone, err := right.DeleteCheckpoints(ctx, w, keep)
			if len(gone) == 0 {
				err = cmp.Or(err, failure(checkpointdb.ErrInvalidArgument))
			}
			return gone, err
		}
	}},
	{"WriterBeforeKeep", "DeleteCheckpoints/Order", func(s *store, right *rightStore) {
		s.deleteCheckpoints = func(ctx context.Context, w writer, keep int) ([]checkpointID, error) {
			if _, err := right.Renew(ctx, w); err != nil {
				return nil, err
			}
			return right.DeleteCheckpoints(ctx, w, keep)
		}
	}},
	{"ForgetsPrunedParents", "DeleteCheckpoints/OtherThreads DeleteCheckpoints/HeadOverGap Prune/Gaps", func(s *store, right *rightStore) {
		s.onRead(func(c *checkpoint) {
			if _, err := right.Get(context.Background(), c.ParentCheckpointID); err != nil {
				c.ParentCheckpointID = ""
			}
		})
	}},
	{"HeadIsMissingParent", "DeleteCheckpoints/HeadOverGap Prune/Headless", func(s *store, right *rightStore) {
		s.headAfterDelete(right, func(checkpointID) bool { return true })
	}},
	{"HeadIsAnyThreadsParent", "DeleteCheckpoints/GapIDUsedAgain Prune/GapIDUsedAgain", func(s *store, right *rightStore) {
		s.headAfterDelete(right, func(parent checkpointID) bool {
			_, err := right.Get(context.Background(), parent)
			return err == nil
		})
	}},
	{"KeepsOneMore", "Prune/KeepLast", func(s *store, right *rightStore) {
		s.onPrune(right, func(_ checkpointID, p *prunePolicy) {
			if p.KeepLast > 0 {
				p.KeepLast++
			}
		})
	}},
	{"KeepsAsOld", "Prune/KeepYounger", func(s *store, right *rightStore) {
		s.onPrune(right, func(_ checkpointID, p *prunePolicy) {
			if p.KeepYounger > 0 {
				p.KeepYounger++
			}
		})
	}},
	{"NamedByLabel", "Prune/KeepNamed", func(s *store, _ *rightStore) {
		s.onAppend(func(c *checkpoint, _ *checkpointID) {
			if c.Label != "" {
				c.Reason = checkpointdb.ReasonNamed
			}
		})
	}},
	{"FirstRuleOnly", "Prune/AnyRule", func(s *store, right *rightStore) {
		s.onPrune(right, func(_ checkpointID, p *prunePolicy) {
			if p.KeepLast > 0 {
				p.KeepYounger, p.KeepNamed = 0, false
			}
		})
	}},
	{"PrunesHead", "Prune/HeadStays", func(s *store, right *rightStore) {
		s.prune = func(ctx context.Context, w writer, p prunePolicy) ([]checkpointID, error) {
			gone, err := right.Prune(ctx, w, p)
			if head, _ := right.Head(ctx, w.ThreadID); p.KeepLast == 0 {
				gone = append(gone, head)
			}
			return gone, err
		}
	}},
	{"NoRuleKeepsHead", "Prune/NoRule", func(s *store, right *rightStore) {
		s.onPrune(right, func(_ checkpointID, p *prunePolicy) { p.KeepLast = max(p.KeepLast, 1) })
	}},
	{"DryRunByAnybody", "Prune/Order", func(s *store, right *rightStore) {
		s.prune = func(ctx context.Context, w writer, p prunePolicy) ([]checkpointID, error) {
			gone, err := right.Prune(ctx, w, p)
			if p.DryRun {
				err = forgive(err, checkpointdb.ErrWriterLost)
			}
			return gone, err
		}
	}},
	{"DryRunDeletes", "Prune/DryRun", func(s *store, right *rightStore) {
		s.onPrune(right, func(_ checkpointID, p *prunePolicy) { p.DryRun = false })
	}},
	{"MissingHeadCounts", "Prune/HeadlessChain", func(s *store, right *rightStore) {
		s.onPrune(right, func(head checkpointID, p *prunePolicy) {
			if head == "" && p.KeepLast > 1 {
				p.KeepLast--
			}
		})
	}},
	{"NewestAlwaysStays", "Prune/HeadlessToNothing", func(s *store, right *rightStore) {
		s.onPrune(right, func(head checkpointID, p *prunePolicy) {
			if head == "" {
				p.KeepLast = max(p.KeepLast, 1)
			}
		})
	}},

	// Instances.
	{"ZeroForMissingInstance", "Instances/Missing", func(s *store, right *rightStore) {
		s.getInstance = func(ctx context.Context, key string) (instance, error) {
			in, err := right.GetInstance(ctx, key)
			return in, forgive(err, checkpointdb.ErrInstanceNotFound)
		}
	}},
	{"MergesInstances", "Instances/Replaces", func(s *store, right *rightStore) {
		s.upsertInstance = func(ctx context.Context, in instance) error {
			before, _ := right.GetInstance(ctx, in.Key)
			in.LatestRunID = cmp.Or(in.LatestRunID, before.LatestRunID)
			return right.UpsertInstance(ctx, in)
		}
	}},
	{"KeysEndAtNUL", "Instances/Keys", func(s *store, right *rightStore) {
		s.upsertInstance = func(ctx context.Context, in instance) error {
			in.Key, _, _ = strings.Cut(in.Key, "\x00")
			return right.UpsertInstance(ctx, in)
		}
	}},
	{"DeletesOnlyWhatIsThere", "Instances/Delete", func(s *store, right *rightStore) {
		s.deleteInstance = func(ctx context.Context, key string) error {
			if _, err := right.GetInstance(ctx, key); err != nil {
				return err
			}
			return right.DeleteInstance(ctx, key)
		}
	}},
	{"AnyInstance", "Instances/IDs Instances/Entry", func(s *store, right *rightStore) {
		s.upsertInstance = func(ctx context.Context, in instance) error {
			return forgive(forgive(right.UpsertInstance(ctx, in), checkpointdb.ErrInvalidEntry), checkpointdb.ErrInvalidID)
		}
	}},
	{"InstanceMilliseconds", "Instances/Times Instances/Replaces", func(s *store, right *rightStore) {
		s.upsertInstance = func(ctx context.Context, in instance) error {
			in.UpdatedAt = in.UpdatedAt.Truncate(time.Millisecond)
			return right.UpsertInstance(ctx, in)
		}
	}},

	// Transcripts.
	{"UnknownTranscriptIsError", "Transcripts/Unknown", func(s *store, right *rightStore) {
		s.load = func(ctx context.Context, t threadID) (messages, error) {
			m, err := right.LoadThread(ctx, t)
			if len(m) == 0 {
				err = cmp.Or(err, failure(checkpointdb.ErrCheckpointNotFound))
			}
			return m, err
		}
	}},
	{"AddsToTranscript", "Transcripts/Replaces", func(s *store, right *rightStore) {
		s.save = func(ctx context.Context, t threadID, m messages) error {
			before, _ := right.LoadThread(ctx, t)
			return right.SaveThread(ctx, t, append(before, m...))
		}
	}},
	{"RespellsTranscript", "Transcripts/Bytes Fork/SavesTranscript", func(s *store, right *rightStore) {
		s.load = func(ctx context.Context, t threadID) (messages, error) {
			m, err := right.LoadThread(ctx, t)
			return respell(m), err
		}
	}},
	{"AnyTranscript", "Transcripts/IDs Transcripts/Messages", func(s *store, right *rightStore) {
		s.save = func(ctx context.Context, t threadID, m messages) error {
			return forgive(forgive(right.SaveThread(ctx, t, m), checkpointdb.ErrInvalidEntry), checkpointdb.ErrInvalidID)
		}
	}},
	{"TranscriptEndsWithCheckpoints", "Transcripts/OutlivesCheckpoints Fork/TranscriptStays", func(s *store, right *rightStore) {
		s.deleteHead = func(ctx context.Context, w writer, id checkpointID) error {
			err := right.DeleteHead(ctx, w, id)
			if head, _ := right.Head(ctx, w.ThreadID); err == nil && head == "" {
				err = right.SaveThread(ctx, w.ThreadID, nil)
			}
			return err
		}
	}},
	{"SharesTranscript", "Transcripts/Memory", func(s *store, right *rightStore) {
		kept := map[threadID]messages{}
		s.save = func(ctx context.Context, t threadID, m messages) error {
			kept[t] = m
			return right.SaveThread(ctx, t, m)
		}
		s.load = func(_ context.Context, t threadID) (messages, error) { return kept[t], nil }
	}},

	// DeleteThread.
	{"TranscriptOutlivesThread", "DeleteThread/RemovesAll", func(s *store, right *rightStore) {
		s.deleteThread = func(ctx context.Context, w writer) error {
			m, _ := right.LoadThread(ctx, w.ThreadID)
			return cmp.Or(right.DeleteThread(ctx, w), right.SaveThread(ctx, w.ThreadID, m))
		}
	}},
	{"FenceEndsWithThread", "DeleteThread/FenceStays", func(s *store, _ *rightStore) {
		restart, deleteThread := s.restartFences(), s.deleteThread
		s.deleteThread = func(ctx context.Context, w writer) error {
			err := deleteThread(ctx, w)
			restart(w.ThreadID)
			return err
		}
	}},
	{"DeletesOnce", "DeleteThread/Repeat DeleteThread/Reopen", func(s *store, right *rightStore) {
		s.deleteThread = func(ctx context.Context, w writer) error {
			if _, err := right.Renew(ctx, w); err != nil {
				return err
			}
			return right.DeleteThread(ctx, w)
		}
	}},
	{"AnybodyDeletesThread", "DeleteThread/Repeat DeleteThread/RepeatMeetsState DeleteThread/WriterLost", func(s *store, right *rightStore) {
		s.deleteThread = func(ctx context.Context, w writer) error {
			err := right.DeleteThread(ctx, w)
			if errors.Is(err, checkpointdb.ErrWriterLost) {
				var l lease
				if l, err = right.AcquireWriter(ctx, w.ThreadID); err == nil {
					err = right.DeleteThread(ctx, l.Writer)
				}
			}
			return err
		}
	}},
	{"DeletesInvalidThread", "DeleteThread/ID", func(s *store, right *rightStore) {
		s.deleteThread = func(ctx context.Context, w writer) error {
			return forgive(right.DeleteThread(ctx, w), checkpointdb.ErrInvalidID)
		}
	}},
	{"DeletesAlongParents", "DeleteThread/WithGaps", func(s *store, right *rightStore) {
		s.deleteThread = func(ctx context.Context, w writer) error {
			for {
				head, err := right.Head(ctx, w.ThreadID)
				if head == "" {
					return cmp.Or(err, right.Release(ctx, w))
				}
				if err := right.DeleteHead(ctx, w, head); err != nil {
					return err
				}
			}
		}
	}},
	{"DeletedThreadHasTranscript", "DeleteThread/ThenFork", func(s *store, right *rightStore) {
		s.deleteThread = func(ctx context.Context, w writer) error {
			return cmp.Or(right.DeleteThread(ctx, w), right.SaveThread(ctx, w.ThreadID, nil))
		}
	}},
}

// untilWrite ends a loop with an error once something has been written.
func untilWrite[T any](writes *atomic.Int64, seq iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		before := writes.Load()
		for item, err := range seq {
			if writes.Load() != before {
				yield(item, errors.New("changed meanwhile"))
				return
			}
			if !yield(item, err) {
				return
			}
			time.Sleep(100 * time.Microsecond) // so that concurrent writes fall into the loop
		}
	}
}

// headAfterDelete makes DeleteHead move the head to the parent that it had,
// wherever a condition on that holds.
func (s *store) headAfterDelete(right *rightStore, holds func(parent checkpointID) bool) {
	heads := map[threadID]checkpointID{}
	s.deleteHead = func(ctx context.Context, w writer, id checkpointID) error {
		c, _ := right.Get(ctx, id)
		err := right.DeleteHead(ctx, w, id)
		if err == nil && holds(c.ParentCheckpointID) {
			heads[w.ThreadID] = c.ParentCheckpointID
		}
		return err
	}
	s.head = func(ctx context.Context, t threadID) (checkpointID, error) {
		head, err := right.Head(ctx, t)
		return cmp.Or(head, heads[t]), err
	}
}

// onPrune changes the policy, knowing the head of the thread.
func (s *store) onPrune(right *rightStore, change func(head checkpointID, p *prunePolicy)) {
	s.prune = func(ctx context.Context, w writer, p prunePolicy) ([]checkpointID, error) {
		if head, err := right.Head(ctx, w.ThreadID); err == nil {
			change(head, &p)
		}
		return right.Prune(ctx, w, p)
	}
}

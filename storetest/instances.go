package storetest

import (
	"errors"
	"time"

	"checkpointdb"
)

// instance builds a full record.
func instance(key string) checkpointdb.Instance {
	return checkpointdb.Instance{
		Key: key, Provider: "docker", ProviderSandboxID: "box", ThreadID: "t",
		LatestRunID: "run", LatestSnapshotID: "snapshot", UpdatedAt: time.Unix(1, 500_001).UTC(),
	}
}

func (e *env) upsert(in checkpointdb.Instance) {
	e.Helper()
	if err := capability[checkpointdb.InstanceStore](e).UpsertInstance(e.Context(), in); err != nil {
		e.Fatalf("UpsertInstance(%.80q): %v", in.Key, err)
	}
}

func (e *env) wantInstance(want checkpointdb.Instance) {
	e.Helper()
	got, err := capability[checkpointdb.InstanceStore](e).GetInstance(e.Context(), want.Key)
	if err != nil {
		e.Errorf("GetInstance(%.80q): %v", want.Key, err)
		return
	}
	e.wantEqual("instance", got, want)
}

func (e *env) wantNoInstance(key string) {
	e.Helper()
	_, err := capability[checkpointdb.InstanceStore](e).GetInstance(e.Context(), key)
	e.wantCode("GetInstance", err, checkpointdb.ErrInstanceNotFound)
}

var instanceCases = []testCase{
	{"Missing", "GetInstance of a missing key fails with ErrInstanceNotFound.", func(e *env) {
		e.wantNoInstance("k")
		e.upsert(instance("k"))
		e.wantNoInstance("k1")
		e.wantNoInstance("t")
	}},

	{"Replaces", "UpsertInstance replaces the whole record, so that optional fields that are left out are cleared.", func(e *env) {
		first := instance("k")
		e.upsert(first)
		e.wantInstance(first)
		bare := checkpointdb.Instance{Key: "k", ThreadID: "other", UpdatedAt: time.UnixMicro(-1500).UTC()}
		e.upsert(bare)
		e.wantInstance(bare)
		e.upsert(first)
		e.wantInstance(first)
	}},

	{"Keys", "Keys are texts of any characters, and two never meet.", func(e *env) {
		keys := []string{"k", "k\x00", "k/a", "K", "\uffff", "\U0001f600", "t"}
		for _, key := range keys {
			in := instance(key)
			in.ProviderSandboxID = "box of " + key
			e.upsert(in)
		}
		for _, key := range keys {
			want := instance(key)
			want.ProviderSandboxID = "box of " + key
			e.wantInstance(want)
		}
	}},

	{"Delete", "DeleteInstance removes the record under its key; a missing one is no error.", func(e *env) {
		store := capability[checkpointdb.InstanceStore](e)
		e.upsert(instance("k"))
		e.upsert(instance("other"))
		for range 2 {
			if err := store.DeleteInstance(e.Context(), "k"); err != nil {
				e.Errorf("DeleteInstance: %v", err)
			}
			e.wantNoInstance("k")
		}
		e.wantInstance(instance("other"))
	}},

	{"IDs", "A key is a valid id, and the thread id as well, or the call fails with ErrInvalidID.", func(e *env) {
		store := capability[checkpointdb.InstanceStore](e)
		for what, id := range invalidIDs {
			_, err := store.GetInstance(e.Context(), id)
			e.wantCode("GetInstance with a key: "+what, err, checkpointdb.ErrInvalidID)
			in := instance(id)
			in.UpdatedAt = time.Time{} // checked after the ids
			e.wantCode("UpsertInstance with a key: "+what, store.UpsertInstance(e.Context(), in), checkpointdb.ErrInvalidID)
			in.Key, in.ThreadID = "k", checkpointdb.ThreadID(id)
			e.wantCode("UpsertInstance with a thread id: "+what, store.UpsertInstance(e.Context(), in), checkpointdb.ErrInvalidID)
		}
		e.wantNoInstance("k")
	}},

	{"Entry", "Texts are well-formed Unicode and the time is valid, or UpsertInstance fails with ErrInvalidEntry and keeps what was there.", func(e *env) {
		store := capability[checkpointdb.InstanceStore](e)
		e.upsert(instance("k"))
		for field, spoil := range map[string]func(*checkpointdb.Instance){
			"provider":          func(in *checkpointdb.Instance) { in.Provider = "\xff" },
			"providerSandboxId": func(in *checkpointdb.Instance) { in.ProviderSandboxID = "\xff" },
			"latestRunId":       func(in *checkpointdb.Instance) { in.LatestRunID = "\xff" },
			"latestSnapshotId":  func(in *checkpointdb.Instance) { in.LatestSnapshotID = "\xff" },
			"updatedAt":         func(in *checkpointdb.Instance) { in.UpdatedAt = time.Time{} },
		} {
			in := checkpointdb.Instance{Key: "k", ThreadID: "other", UpdatedAt: time.UnixMilli(1)}
			spoil(&in)
			err := store.UpsertInstance(e.Context(), in)
			e.wantCode("UpsertInstance", err, checkpointdb.ErrInvalidEntry)
			if at := (*checkpointdb.InvalidEntryError)(nil); !errors.As(err, &at) || at.Field != field {
				e.Errorf("error %v is not about %s", err, field)
			}
		}
		e.wantInstance(instance("k"))
	}},

	{"Times", "UpdatedAt is kept to the nanosecond and comes back in UTC.", func(e *env) {
		store := capability[checkpointdb.InstanceStore](e)
		in := instance("k")
		in.UpdatedAt = time.Date(2026, 1, 1, 0, 0, 0, 123456789, time.FixedZone("elsewhere", -3600))
		e.upsert(in)
		got, err := store.GetInstance(e.Context(), "k")
		if err != nil || !got.UpdatedAt.Equal(in.UpdatedAt) || got.UpdatedAt.Location() != time.UTC {
			e.Errorf("UpdatedAt is %v (error %v), want %v", got.UpdatedAt, err, in.UpdatedAt.UTC())
		}
	}},

	{"Reopen", "Instances are there after closing and opening again, and deleted ones are not.", func(e *env) {
		store := capability[checkpointdb.InstanceStore](e)
		e.upsert(instance("k"))
		e.upsert(instance("gone"))
		if err := store.DeleteInstance(e.Context(), "gone"); err != nil {
			e.Fatalf("DeleteInstance: %v", err)
		}
		e.reopen()
		e.wantInstance(instance("k"))
		e.wantNoInstance("gone")
	}},
}

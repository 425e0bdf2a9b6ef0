package storetest

import (
	"encoding/json"

	"checkpointdb"
)

func (e *env) load(thread checkpointdb.ThreadID) []json.RawMessage {
	e.Helper()
	messages, err := capability[checkpointdb.Transcripts](e).LoadThread(e.Context(), thread)
	if err != nil {
		e.Fatalf("LoadThread(%.80q): %v", thread, err)
	}
	return messages
}

func (e *env) save(thread checkpointdb.ThreadID, messages ...string) {
	e.Helper()
	var raw []json.RawMessage
	for _, m := range messages {
		raw = append(raw, json.RawMessage(m))
	}
	e.saveRaw(thread, raw)
}

func (e *env) saveRaw(thread checkpointdb.ThreadID, messages []json.RawMessage) {
	e.Helper()
	e.touch(thread)
	if err := capability[checkpointdb.Transcripts](e).SaveThread(e.Context(), thread, messages); err != nil {
		e.Fatalf("SaveThread(%.80q): %v", thread, err)
	}
}

var transcriptCases = []testCase{
	{"Unknown", "LoadThread of an unknown thread is empty.", func(e *env) {
		e.wantMessages("unknown", e.load("t"), nil)
		e.chain(e.acquire("t"), "c1")
		e.wantMessages("thread with checkpoints alone", e.load("t"), nil)
	}},

	{"Replaces", "SaveThread replaces the whole transcript of its thread, without a lease, and no other's.", func(e *env) {
		e.save("t", "1", "2", "3")
		e.save("other", `"o"`)
		e.save("t", "4")
		e.wantMessages("t", e.load("t"), []json.RawMessage{json.RawMessage("4")})
		e.save("t")
		e.wantMessages("t", e.load("t"), nil)
		e.wantMessages("other", e.load("other"), []json.RawMessage{json.RawMessage(`"o"`)})
		w := e.acquire("t")
		if w.Fence != 1 {
			e.Errorf("the first lease of the thread has fence %d", w.Fence)
		}
		e.save("t", "5") // a lease does not matter
		e.wantMessages("t", e.load("t"), []json.RawMessage{json.RawMessage("5")})
	}},

	{"Bytes", "Messages of a transcript are kept byte for byte, and so is their order.", func(e *env) {
		e.saveRaw("t", hardMessages)
		e.wantMessages("t", e.load("t"), hardMessages)
	}},

	{"IDs", "A thread id is valid, or LoadThread and SaveThread fail with ErrInvalidID.", func(e *env) {
		transcripts := capability[checkpointdb.Transcripts](e)
		for what, id := range invalidIDs {
			_, err := transcripts.LoadThread(e.Context(), checkpointdb.ThreadID(id))
			e.wantCode("LoadThread with an id: "+what, err, checkpointdb.ErrInvalidID)
			err = transcripts.SaveThread(e.Context(), checkpointdb.ThreadID(id), []json.RawMessage{nil})
			e.wantCode("SaveThread with an id: "+what, err, checkpointdb.ErrInvalidID)
		}
	}},

	{"Messages", "Every message is one JSON value in well-formed UTF-8, or SaveThread fails with ErrInvalidEntry and keeps what was there.", func(e *env) {
		transcripts := capability[checkpointdb.Transcripts](e)
		e.save("t", "1")
		for _, bad := range badMessages {
			err := e.refused(checkpointdb.ErrInvalidEntry, "SaveThread", func() error {
				return transcripts.SaveThread(e.Context(), "t", []json.RawMessage{json.RawMessage("2"), json.RawMessage(bad)})
			})
			if at := detail[*checkpointdb.InvalidEntryError](e, err); at.Index != 1 {
				e.Errorf("the error is about message %d, want 1", at.Index)
			}
		}
	}},

	{"OutlivesCheckpoints", "Transcript and checkpoints of a thread do not touch each other.", func(e *env) {
		e.save("t", "1")
		w := e.acquire("t")
		e.chain(w, "c1")
		e.wantMessages("after an append", e.load("t"), []json.RawMessage{json.RawMessage("1")})
		e.deleteHead(w, "c1")
		e.release(w)
		e.wantMessages("after the last checkpoint", e.load("t"), []json.RawMessage{json.RawMessage("1")})
	}},

	{"Memory", "A transcript that is passed in is not kept, and one that comes back belongs to the caller.", func(e *env) {
		passed := []json.RawMessage{json.RawMessage("1"), json.RawMessage("2")}
		e.saveRaw("t", passed)
		passed[0][0], passed[1] = 'X', nil
		got := e.load("t")
		got[0][0], got[1] = 'X', nil
		e.wantMessages("t", e.load("t"), []json.RawMessage{json.RawMessage("1"), json.RawMessage("2")})
	}},

	{"Reopen", "Transcripts are there after closing and opening again.", func(e *env) {
		e.save("t", "1", "2")
		e.save("empty")
		e.chain(e.acquire("source"), "c1")
		e.reopen()
		e.wantMessages("t", e.load("t"), []json.RawMessage{json.RawMessage("1"), json.RawMessage("2")})
		if _, ok := e.store.(checkpointdb.Forker); ok {
			w := e.acquire("empty")
			e.refused(checkpointdb.ErrForkDestinationNotEmpty, "Fork into a thread with an empty transcript", func() error {
				return e.fork(forkCall{w, forkRequest("source", "c1", "empty", "root")})
			})
		}
	}},
}

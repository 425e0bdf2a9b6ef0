package storetest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"checkpointdb"
)

// hardMessages are valid messages that a store changes if it decodes them, or
// keeps them in a form that cannot hold them.
var hardMessages = func() []json.RawMessage {
	var all []json.RawMessage
	for _, text := range []string{
		"9007199254740993", "-9223372036854775808", "1e400", "1.0", "0.1", "-0", "1E+2",
		"123456789012345678901234567890",
		`{"a":1,"a":2}`, `{"__proto__":{"x":1},"":0}`, `{ "b" : [ 1 , 2 ],` + "\n\t" + `"a" : null }`,
		"\"\u2028\u2029\"", `"\u2028"`,
		`"\u0000"`, `"<>&"`, `"\u003c\/"`, `"\ud83d"`, `"\ude00\ud83d"`, `"\ud83d\ude00"`, "\"\U0001f600\"", "\"\ufffd\"", `"\ufffd"`, "\"\x7f\"",
		" true ", `""`, `{}`, `[]`, "null",
		strings.Repeat(`[`, 5000) + strings.Repeat(`]`, 5000),
		strings.Repeat(`{"a":`, 5000) + "0" + strings.Repeat(`}`, 5000),
		`"` + strings.Repeat("line ", 1<<20/5) + `"`,
	} {
		all = append(all, json.RawMessage(text))
	}
	return all
}()

// wantMessages compares messages byte for byte, without printing them in full.
func (e *env) wantMessages(what string, got, want []json.RawMessage) {
	e.Helper()
	if len(got) != len(want) {
		e.Errorf("%s: %d messages, want %d", what, len(got), len(want))
		return
	}
	for i := range want {
		if !bytes.Equal(got[i], want[i]) {
			e.Errorf("%s: message %d is %.80s, want %.80s", what, i, got[i], want[i])
		}
	}
}

var valueCases = []testCase{
	{"Conversation", "Messages are kept byte for byte, and so is their order.", func(e *env) {
		w := e.acquire("t")
		for i, id := range []checkpointdb.CheckpointID{"c1", "c2", "c3"} {
			c := e.checkpoint("t", id, e.head("t"))
			c.Conversation = append(c.Conversation, hardMessages[i:]...)
			e.append(w, c)
			e.wantMessages("Get", e.get(id).Conversation, c.Conversation)
			listed := e.list("t")
			e.wantMessages("List", listed[len(listed)-1].Conversation, c.Conversation)
		}
	}},

	{"Times", "Times are kept to the nanosecond and come back in UTC.", func(e *env) {
		w := e.acquire("t")
		elsewhere := time.FixedZone("elsewhere", 5*3600+1800)
		for i, at := range []time.Time{
			time.UnixMicro(1500), time.UnixMilli(-1), time.UnixMilli(0), time.Unix(0, 1), time.Unix(0, -1), time.Unix(-1, 999_999_999),
			time.Now(), time.Date(1900, 1, 1, 0, 0, 0, 0, elsewhere), time.Date(2026, 1, 1, 0, 0, 0, 123456789, elsewhere), time.Date(9999, 12, 31, 0, 0, 0, 0, elsewhere),
		} {
			c := e.checkpoint("t", checkpointdb.CheckpointID(rune('a'+i)), e.head("t"))
			c.CreatedAt, c.Artifacts[0].CreatedAt = at, at
			e.append(w, c)
			got := e.get(c.ID)
			for field, kept := range map[string]time.Time{"CreatedAt": got.CreatedAt, "CreatedAt of an artifact": got.Artifacts[0].CreatedAt} {
				if !kept.Equal(at) || kept.Location() != time.UTC {
					e.Errorf("%s is %v, want %v", field, kept, at.UTC())
				}
			}
		}
	}},

	{"ReturnedIsCallers", "What comes back belongs to the caller: writing to it does not reach the store.", func(e *env) {
		w := e.acquire("t")
		want := e.chain(w, "c1")[0].Clone()
		spoil := func(c checkpointdb.Checkpoint) {
			c.Files[0].Path = "spoiled"
			c.Conversation[0][0] = 'X'
			c.Conversation[0] = nil
			c.Artifacts[0].Name = "spoiled"
			// Appending must not write into what the store still uses.
			_ = append(c.Files[:0], file("spoiled", "spoiled"))
			_ = append(c.Artifacts[:0], artifact("spoiled", "spoiled"))
		}
		spoil(e.get("c1"))
		spoil(e.list("t")[0])
		e.wantEqual("Get after writing to what came back", e.get("c1"), want)
		e.wantEqual("List after writing to what came back", e.list("t"), []checkpointdb.Checkpoint{want})
	}},

	{"PassedIsNotKept", "What is passed in is not kept: writing to it afterwards does not reach the store.", func(e *env) {
		w := e.acquire("t")
		c := e.checkpoint("t", "c1", "")
		want := c.Clone()
		e.append(w, c)
		e.wantEqual("the checkpoint that was passed in", c, want)
		c.Files[0].Path = "spoiled"
		c.Conversation[0][0] = 'X'
		c.Artifacts[0].Name = "spoiled"
		e.wantEqual("Get", e.get("c1"), want)
	}},

	{"ReturnedStays", "What comes back stays as it is, whatever the store does later.", func(e *env) {
		w := e.acquire("t")
		first := e.chain(w, "kept")[0]
		got := e.get("kept")
		listed := e.list("t")
		references := e.references()
		want := append([]checkpointdb.BlobReference(nil), references...)
		for range 20 {
			e.chain(w, "a", "b", "c")
			e.deleteHead(w, "c")
			e.deleteHead(w, "b")
			e.deleteHead(w, "a")
		}
		e.deleteHead(w, "kept")
		e.wantEqual("Get from before", got, first)
		e.wantEqual("List from before", listed, []checkpointdb.Checkpoint{first})
		e.wantEqual("BlobReferences from before", references, want)
	}},

	{"Large", "A checkpoint of thousands of files comes back whole, and its successor shares what it shares.", func(e *env) {
		w := e.acquire("t")
		const files = 3000
		c := e.checkpoint("t", "c1", "")
		for i := range files {
			text := strings.Repeat("d/", i%7) + fmt.Sprint(i)
			c.Files = append(c.Files, file(text, text))
		}
		e.append(w, c)
		e.wantEqual("first", e.get("c1"), c)
		next := c.Clone()
		next.ID, next.ParentCheckpointID = "c2", "c1"
		next.Files = append(next.Files[:10:10], next.Files[20:]...)
		next.Files[1000] = file(next.Files[1000].Path, "changed")
		next.Files[0], next.Files[2000] = next.Files[2000], next.Files[0]
		e.append(w, next)
		e.wantEqual("second", e.get("c2"), next)
		e.wantEqual("first after the second", e.get("c1"), c)
	}},
}

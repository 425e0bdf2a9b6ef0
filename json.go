package checkpointdb

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"
)

// The JSON form is that of the reference implementation: times are numbers of
// milliseconds, a missing parent is null, optional fields are left out.
//
// Reading is stricter than encoding/json: a field that is unknown or stands
// twice is an error that names it, and a string with a lone surrogate or with
// bytes that are not UTF-8 is refused instead of being rewritten. Messages of a
// conversation are taken byte for byte.

// MarshalJSON writes the contract's form. Messages are written byte for byte;
// note that json.Marshal and json.Encoder, which call this method, may respell
// them (they drop white space and escape <, > and &), while a direct call does
// not. An invalid checkpoint is not written.
func (c Checkpoint) MarshalJSON() ([]byte, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	w := jsonWriter{}
	w.begin('{')
	w.string("id", string(c.ID))
	w.string("threadId", string(c.ThreadID))
	if c.ParentCheckpointID == "" {
		w.raw("parentCheckpointId", "null")
	} else {
		w.string("parentCheckpointId", string(c.ParentCheckpointID))
	}
	w.raw("createdAt", formatMillis(c.CreatedAt))
	w.string("reason", string(c.Reason))
	w.optional("label", c.Label)
	w.optional("sourceRunId", c.SourceRunID)
	w.key("files")
	w.begin('[')
	for _, e := range c.Files {
		w.comma()
		w.entry(e)
	}
	w.end(']')
	w.key("conversation")
	w.begin('[')
	for _, m := range c.Conversation {
		w.comma()
		w.buf = append(w.buf, m...)
	}
	w.end(']')
	w.key("artifacts")
	w.begin('[')
	for _, a := range c.Artifacts {
		w.comma()
		w.artifact(a)
	}
	w.end(']')
	w.end('}')
	return w.buf, nil
}

// MarshalJSON writes the contract's form of an entry.
func (e Entry) MarshalJSON() ([]byte, error) {
	w := jsonWriter{}
	w.entry(e)
	return w.buf, nil
}

// MarshalJSON writes the contract's form of an artifact.
func (a Artifact) MarshalJSON() ([]byte, error) {
	w := jsonWriter{}
	w.artifact(a)
	return w.buf, nil
}

// MarshalJSON writes the contract's form of an instance.
func (in Instance) MarshalJSON() ([]byte, error) {
	w := jsonWriter{}
	w.begin('{')
	w.string("key", in.Key)
	w.string("provider", in.Provider)
	w.string("providerSandboxId", in.ProviderSandboxID)
	w.string("threadId", string(in.ThreadID))
	w.optional("latestRunId", in.LatestRunID)
	w.optional("latestSnapshotId", in.LatestSnapshotID)
	w.raw("updatedAt", formatMillis(in.UpdatedAt))
	w.end('}')
	return w.buf, nil
}

// jsonWriter appends compact JSON.
type jsonWriter struct {
	buf  []byte
	need bool // whether a comma must stand before the next key or item
}

func (w *jsonWriter) begin(open byte) { w.buf = append(w.buf, open); w.need = false }
func (w *jsonWriter) end(close byte)  { w.buf = append(w.buf, close); w.need = true }

func (w *jsonWriter) comma() {
	if w.need {
		w.buf = append(w.buf, ',')
	}
	w.need = true
}

func (w *jsonWriter) key(name string) {
	w.comma()
	w.buf = append(w.buf, '"')
	w.buf = append(w.buf, name...)
	w.buf = append(w.buf, '"', ':')
}

func (w *jsonWriter) raw(name, value string) { w.key(name); w.buf = append(w.buf, value...) }

func (w *jsonWriter) string(name, value string) {
	w.key(name)
	text := &bytes.Buffer{}
	enc := json.NewEncoder(text)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(value) // a string always encodes, and a Buffer never fails
	w.buf = append(w.buf, bytes.TrimSuffix(text.Bytes(), []byte("\n"))...)
}

func (w *jsonWriter) optional(name, value string) {
	if value != "" {
		w.string(name, value)
	}
}

func (w *jsonWriter) entry(e Entry) {
	w.begin('{')
	w.string("path", e.Path)
	w.string("kind", string(e.Kind))
	switch e.Kind {
	case KindFile:
		w.string("blobKey", string(e.BlobKey))
		w.raw("size", strconv.FormatInt(e.Size, 10))
		if e.Executable {
			w.raw("executable", "true")
		}
	case KindSymlink:
		w.string("target", e.Target)
	}
	w.end('}')
}

func (w *jsonWriter) artifact(a Artifact) {
	w.begin('{')
	w.string("artifactId", a.ArtifactID)
	w.string("name", a.Name)
	w.string("mimeType", a.MimeType)
	w.raw("size", strconv.FormatInt(a.Size, 10))
	w.string("blobKey", string(a.BlobKey))
	w.raw("createdAt", formatMillis(a.CreatedAt))
	w.end('}')
}

// UnmarshalJSON reads the contract's form strictly and validates what it read,
// ids first. Errors match [ErrInvalidID] or [ErrInvalidEntry].
func (c *Checkpoint) UnmarshalJSON(data []byte) error {
	fields, err := decodeObject(data, "id", "threadId", "parentCheckpointId", "createdAt", "reason",
		"label", "sourceRunId", "files", "conversation", "artifacts")
	if err != nil {
		return invalidField("checkpoint", "%s", err)
	}
	read := Checkpoint{}
	if read.ID, err = decodeID[CheckpointID]("id", fields["id"]); err != nil {
		return err
	}
	if read.ThreadID, err = decodeID[ThreadID]("threadId", fields["threadId"]); err != nil {
		return err
	}
	if read.ParentCheckpointID, err = ParseOptionalCheckpointID(fields["parentCheckpointId"]); err != nil {
		return err
	}
	if read.CreatedAt, err = parseMillis(fields["createdAt"]); err != nil {
		return invalidField("createdAt", "%s", err)
	}
	var texts [3]string
	for i, name := range []string{"reason", "label", "sourceRunId"} {
		raw, given := fields[name]
		if !given && name != "reason" {
			continue
		}
		if texts[i], err = decodeString(raw); err != nil {
			return invalidField(name, "%s", err)
		}
	}
	read.Reason, read.Label, read.SourceRunID = Reason(texts[0]), texts[1], texts[2]
	if read.Files, err = decodeList[Entry]("files", fields["files"]); err != nil {
		return err
	}
	if read.Conversation, err = decodeList[json.RawMessage]("conversation", fields["conversation"]); err != nil {
		return err
	}
	if read.Artifacts, err = decodeList[Artifact]("artifacts", fields["artifacts"]); err != nil {
		return err
	}
	if err := read.Validate(); err != nil {
		return err
	}
	*c = read
	return nil
}

// UnmarshalJSON reads one entry strictly; whether it is valid is for
// [ValidateFiles] to say. The error matches [ErrInvalidEntry].
func (e *Entry) UnmarshalJSON(data []byte) error {
	fields, err := decodeObject(data, "path", "kind", "blobKey", "size", "executable", "target")
	if err != nil {
		return invalidField("entry", "%s", err)
	}
	var read Entry
	var kind, key string
	for _, f := range []struct {
		name string
		to   *string
	}{{"path", &read.Path}, {"kind", &kind}, {"blobKey", &key}, {"target", &read.Target}} {
		if raw, given := fields[f.name]; given {
			if *f.to, err = decodeString(raw); err != nil {
				return invalidField(f.name, "%s", err)
			}
		}
	}
	read.Kind, read.BlobKey = EntryKind(kind), BlobKey(key)
	// The Go form cannot tell a missing field from a zero one, so what must be
	// there, or must not, is checked here.
	owned := map[EntryKind][]string{KindFile: {"blobKey", "size"}, KindSymlink: {"target"}}
	for _, name := range owned[read.Kind] {
		if fields[name] == nil {
			return invalidField(name, "missing in a %s", read.Kind)
		}
	}
	for _, name := range []string{"blobKey", "size", "executable", "target"} {
		foreign := read.Kind != KindFile && name != "target" || read.Kind != KindSymlink && name == "target"
		if fields[name] != nil && foreign {
			return invalidField(name, "a %s has none", kind)
		}
	}
	if raw, given := fields["size"]; given {
		if read.Size, err = decodeSize(raw); err != nil {
			return invalidField("size", "%s", err)
		}
	}
	switch raw := fields["executable"]; string(raw) {
	case "", "false":
	case "true":
		read.Executable = true
	default:
		return invalidField("executable", "%.40s is neither true nor false", raw)
	}
	*e = read
	return nil
}

// UnmarshalJSON reads one artifact strictly; whether it is valid is for
// [Checkpoint.Validate] to say. The error matches [ErrInvalidEntry].
func (a *Artifact) UnmarshalJSON(data []byte) error {
	fields, err := decodeObject(data, "artifactId", "name", "mimeType", "size", "blobKey", "createdAt")
	if err != nil {
		return invalidField("artifact", "%s", err)
	}
	var read Artifact
	var key string
	for _, f := range []struct {
		name string
		to   *string
	}{{"artifactId", &read.ArtifactID}, {"name", &read.Name}, {"mimeType", &read.MimeType}, {"blobKey", &key}} {
		if *f.to, err = decodeString(fields[f.name]); err != nil {
			return invalidField(f.name, "%s", err)
		}
	}
	read.BlobKey = BlobKey(key)
	if read.Size, err = decodeSize(fields["size"]); err != nil {
		return invalidField("size", "%s", err)
	}
	if read.CreatedAt, err = parseMillis(fields["createdAt"]); err != nil {
		return invalidField("createdAt", "%s", err)
	}
	*a = read
	return nil
}

// UnmarshalJSON reads one instance strictly and validates it.
func (in *Instance) UnmarshalJSON(data []byte) error {
	fields, err := decodeObject(data, "key", "provider", "providerSandboxId", "threadId", "latestRunId", "latestSnapshotId", "updatedAt")
	if err != nil {
		return invalidField("instance", "%s", err)
	}
	var read Instance
	if read.Key, err = decodeID[string]("key", fields["key"]); err != nil {
		return err
	}
	if read.ThreadID, err = decodeID[ThreadID]("threadId", fields["threadId"]); err != nil {
		return err
	}
	for _, f := range []struct {
		name     string
		to       *string
		optional bool
	}{
		{"provider", &read.Provider, false},
		{"providerSandboxId", &read.ProviderSandboxID, false},
		{"latestRunId", &read.LatestRunID, true},
		{"latestSnapshotId", &read.LatestSnapshotID, true},
	} {
		raw, given := fields[f.name]
		if f.optional && !given {
			continue
		}
		if *f.to, err = decodeString(raw); err != nil {
			return invalidField(f.name, "%s", err)
		}
	}
	if read.UpdatedAt, err = parseMillis(fields["updatedAt"]); err != nil {
		return invalidField("updatedAt", "%s", err)
	}
	if err := read.Validate(); err != nil {
		return err
	}
	*in = read
	return nil
}

// Validate checks an instance record: key and thread id as ids
// ([ErrInvalidID]), then the texts and the time ([ErrInvalidEntry]).
func (in Instance) Validate() error {
	if err := validateID("instance key", in.Key); err != nil {
		return err
	}
	if err := in.ThreadID.Validate(); err != nil {
		return err
	}
	for _, f := range []struct{ name, text string }{
		{"provider", in.Provider}, {"providerSandboxId", in.ProviderSandboxID},
		{"latestRunId", in.LatestRunID}, {"latestSnapshotId", in.LatestSnapshotID},
	} {
		if !utf8.ValidString(f.text) {
			return invalidField(f.name, "not well-formed Unicode")
		}
	}
	return ValidateTime("updatedAt", in.UpdatedAt)
}

// ParseOptionalCheckpointID reads a parent or an expected head from JSON. A
// missing value (nil) and null give "", for none; an explicit "" is an invalid
// id.
func ParseOptionalCheckpointID(raw json.RawMessage) (CheckpointID, error) {
	if raw == nil || string(raw) == "null" {
		return "", nil
	}
	return decodeID[CheckpointID]("checkpoint id", raw)
}

func decodeID[T ~string](what string, raw json.RawMessage) (T, error) {
	id, err := decodeString(raw)
	if err != nil {
		return "", invalidID(what, "%s", err)
	}
	return T(id), validateID(what, id)
}

// decodeObject splits an object into its fields, byte for byte.
func decodeObject(data []byte, known ...string) (map[string]json.RawMessage, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	if open, err := dec.Token(); err != nil {
		return nil, err
	} else if open != json.Delim('{') {
		return nil, fmt.Errorf("%.40s is not an object", data)
	}
	fields := make(map[string]json.RawMessage, len(known))
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, err
		}
		name := key.(string)
		isKnown := false
		for _, k := range known {
			isKnown = isKnown || k == name
		}
		if !isKnown {
			return nil, fmt.Errorf("unknown field %q", name)
		}
		if _, twice := fields[name]; twice {
			return nil, fmt.Errorf("field %q stands twice", name)
		}
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return nil, fmt.Errorf("field %q: %w", name, err)
		}
		fields[name] = raw
	}
	_, err := dec.Token()
	return fields, err
}

// decodeList reads an array. A missing array is an error, and so is null: only
// a Go nil slice is an empty list.
func decodeList[T any](field string, raw json.RawMessage) ([]T, error) {
	if raw == nil {
		return nil, invalidField(field, "missing")
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	if open, err := dec.Token(); err != nil || open != json.Delim('[') {
		return nil, invalidField(field, "%.40s is not a list", raw)
	}
	list := []T{}
	for dec.More() {
		var element json.RawMessage
		if err := dec.Decode(&element); err != nil {
			return nil, invalidItem(field, len(list), "", "%s", err)
		}
		var item T
		if message, ok := any(&item).(*json.RawMessage); ok {
			*message = element
		} else if err := any(&item).(json.Unmarshaler).UnmarshalJSON(element); err != nil {
			return nil, invalidItem(field, len(list), "", "%s", err.(*Error).Err)
		}
		list = append(list, item)
	}
	return list, nil
}

func decodeSize(raw json.RawMessage) (int64, error) {
	size, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || size < 0 || size > MaxSize || size != float64(int64(size)) {
		return 0, fmt.Errorf("%.40s is not a whole number within 0 and 2^53-1", raw)
	}
	return int64(size), nil
}

// decodeString reads a JSON string and refuses what encoding/json would rewrite
// to U+FFFD.
func decodeString(raw json.RawMessage) (string, error) {
	if len(raw) == 0 {
		return "", fmt.Errorf("missing")
	}
	if raw[0] != '"' {
		return "", fmt.Errorf("%.40s is not a string", raw)
	}
	if !utf8.Valid(raw) {
		return "", fmt.Errorf("%.80q is not well-formed UTF-8", raw)
	}
	if hasLoneSurrogate(raw) {
		return "", fmt.Errorf("%.80s has a lone surrogate", raw)
	}
	var s string
	err := json.Unmarshal(raw, &s)
	return s, err
}

// hasLoneSurrogate looks for an escaped surrogate without its other half in a
// syntactically valid JSON string.
func hasLoneSurrogate(raw []byte) bool {
	escape := func(i int) rune { // the code unit of an escape \uXXXX at i, -1 for anything else
		if i+6 > len(raw) || raw[i] != '\\' || raw[i+1] != 'u' {
			return -1
		}
		unit, err := strconv.ParseUint(string(raw[i+2:i+6]), 16, 16)
		if err != nil {
			return -1
		}
		return rune(unit)
	}
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' {
			continue
		}
		unit := escape(i)
		switch {
		case unit < 0:
			i++ // a two-byte escape
		case !utf16.IsSurrogate(unit):
			i += 5
		case utf16.DecodeRune(unit, escape(i+6)) == utf8.RuneError:
			return true
		default:
			i += 11
		}
	}
	return false
}

// formatMillis writes t as milliseconds since 1970, exactly.
func formatMillis(t time.Time) string {
	millis := t.Unix()*1000 + int64(t.Nanosecond()/1e6)
	rest := int64(t.Nanosecond() % 1e6) // nanoseconds above millis, never negative
	if rest == 0 {
		return strconv.FormatInt(millis, 10)
	}
	sign := ""
	if millis < 0 {
		sign, millis, rest = "-", -millis-1, 1e6-rest
	}
	return sign + strconv.FormatInt(millis, 10) + "." + strings.TrimRight(fmt.Sprintf("%06d", rest), "0")
}

// parseMillis reads milliseconds since 1970 exactly, or says why it cannot.
func parseMillis(raw json.RawMessage) (time.Time, error) {
	text := string(raw)
	if text == "" {
		return time.Time{}, fmt.Errorf("missing")
	}
	approx, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("%.40s is not a finite number of milliseconds", raw)
	}
	if approx < -8.64e15 || approx > 8.64e15 {
		return time.Time{}, fmt.Errorf("%.40s is more than 8.64e15 ms from 1970", raw)
	}
	// An exact value needs a bound on the exponent: a few digits can name a
	// number of any length.
	if i := strings.IndexAny(text, "eE"); i >= 0 {
		if exp, err := strconv.Atoi(text[i+1:]); err != nil || exp < -100 || exp > 100 {
			return time.Time{}, fmt.Errorf("%.40s has too large an exponent", raw)
		}
	}
	millis, ok := new(big.Rat).SetString(text)
	if !ok {
		return time.Time{}, fmt.Errorf("%.40s is not a number", raw)
	}
	nanos := millis.Mul(millis, big.NewRat(1e6, 1))
	if !nanos.IsInt() {
		return time.Time{}, fmt.Errorf("%.40s is finer than a nanosecond", raw)
	}
	sec, nsec := new(big.Int).DivMod(nanos.Num(), big.NewInt(1e9), new(big.Int))
	t := time.Unix(sec.Int64(), nsec.Int64()).UTC()
	return t, nil
}

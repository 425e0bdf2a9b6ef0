package checkpointdb

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
)

// bbolt's file format, as far as it matters before bbolt maps the file: page
// header of 16 bytes, then in the first two pages a meta record. Little-endian
// on every machine this library builds for.
const (
	boltMagic      = 0xED0CDAED
	boltMetaOffset = 16
	boltMetaFlag   = 4
	boltMetaLen    = 64 // the checksum is the last 8 bytes of it
)

// precheck tells by plain reads whether the file at path can be what it should,
// so that a cut or foreign file gives an error that says so. Through the memory
// map it would be a fault.
func precheck(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	damaged := func(format string, args ...any) error {
		return &Error{Code: ErrDamaged, Message: path + " is damaged: " + fmt.Sprintf(format, args...)}
	}
	head := make([]byte, 4096)
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	head = head[:n]
	var best boltMeta
	magic := false
	if m, ok := parseBoltMeta(head); ok {
		best, magic = m, true
	} else if m.magic == boltMagic {
		magic = true
	}
	// The second meta lies a page further, and only the first one says how long
	// a page is.
	for size := int64(1024); size <= 1<<24; size *= 2 {
		page := make([]byte, boltMetaOffset+boltMetaLen)
		if _, err := f.ReadAt(page, size); err != nil {
			break
		}
		m, ok := parseBoltMeta(page)
		magic = magic || m.magic == boltMagic
		if ok && int64(m.pageSize) == size && m.txid >= best.txid {
			best = m
		}
	}
	switch {
	case best.pages > 0:
		if need := int64(best.pages) * int64(best.pageSize); need > info.Size() {
			return damaged("it has %d bytes of at least %d, so it was cut", info.Size(), need)
		}
		return nil
	case magic, len(head) > boltMetaOffset && isZero(head[:8]) && head[8] == boltMetaFlag && isZero(head[9:boltMetaOffset]):
		return damaged("neither of its two meta pages is whole")
	case isZero(head):
		return damaged("its first page is all zero")
	default:
		return &Error{Code: ErrNotAStore, Message: path + " is not a bbolt file"}
	}
}

type boltMeta struct {
	magic, pageSize uint32
	freelist        uint64
	pages, txid     uint64
}

// parseBoltMeta reads the meta record of a page; ok tells whether it is whole.
func parseBoltMeta(page []byte) (m boltMeta, ok bool) {
	if len(page) < boltMetaOffset+boltMetaLen {
		return boltMeta{}, false
	}
	b := page[boltMetaOffset : boltMetaOffset+boltMetaLen]
	m = boltMeta{
		magic:    binary.LittleEndian.Uint32(b),
		pageSize: binary.LittleEndian.Uint32(b[8:]),
		freelist: binary.LittleEndian.Uint64(b[32:]),
		pages:    binary.LittleEndian.Uint64(b[40:]),
		txid:     binary.LittleEndian.Uint64(b[48:]),
	}
	sum := fnv.New64a()
	sum.Write(b[:56])
	ok = m.magic == boltMagic && sum.Sum64() == binary.LittleEndian.Uint64(b[56:]) &&
		m.pages < 1<<40 && m.pageSize <= 1<<24
	return m, ok
}

func isZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

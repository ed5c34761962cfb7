package files

import (
	"bytes"
	"io"
	"testing"
	"testing/iotest"
)

// wantLines is what copyLines is to write, said the simple way.
func wantLines(data []byte, offset, limit int64) []byte {
	all := bytes.SplitAfter(data, []byte("\n"))
	if n := int64(len(all)); offset > n {
		return nil
	}
	all = all[offset-1:]
	if limit >= 0 && limit < int64(len(all)) {
		all = all[:limit]
	}
	return bytes.Join(all, nil)
}

func FuzzLines(f *testing.F) {
	f.Add([]byte("a\nb\n\nc"), int64(2), int64(2), byte(0))
	f.Add([]byte("\n\n\n"), int64(1), int64(-1), byte(1))
	f.Add([]byte(""), int64(1), int64(1), byte(2))
	f.Fuzz(func(t *testing.T, data []byte, offset, limit int64, how byte) {
		if CheckLines(offset, limit) != nil {
			t.Skip()
		}
		var out bytes.Buffer
		n, err := copyLines(t.Context(), &out, readers(data, how), offset, limit)
		if err != nil {
			t.Fatal(err)
		}
		if want := wantLines(data, offset, limit); !bytes.Equal(out.Bytes(), want) || n != int64(len(want)) {
			t.Errorf("lines %d+%d of %q are %q, want %q", offset, limit, data, out.Bytes(), want)
		}
	})
}

// readers gives data in one of several ways a reader may.
func readers(data []byte, how byte) io.Reader {
	r := io.Reader(bytes.NewReader(data))
	switch how % 4 {
	case 1:
		return iotest.OneByteReader(r)
	case 2:
		return iotest.HalfReader(r)
	case 3:
		return iotest.DataErrReader(r)
	}
	return r
}

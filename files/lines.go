package files

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strconv"
)

// Lines writes limit lines of the content to w, from line offset on, counted from 1, and returns the bytes written. A
// line ends with LF, which is written with it; the last one may lack it. Bytes are not looked at otherwise. Past the
// end there is nothing, which is no error. A limit below 0 means all that follow.
//
// The error is ErrInvalid for an offset below 1 and a limit of 0, the reader's, the writer's or ctx's.
func (c *Content) Lines(ctx context.Context, w io.Writer, offset, limit int64) (int64, error) {
	if err := CheckLines(offset, limit); err != nil {
		return 0, err
	}
	n, err := copyLines(ctx, w, c.Reader(), offset, limit)
	return n, fail("read", c.Path, err)
}

// CheckLines says whether Lines would take offset and limit.
func CheckLines(offset, limit int64) error {
	switch {
	case offset < 1:
		return &Error{Op: "read from line", Path: strconv.FormatInt(offset, 10), Kind: ErrInvalid, Err: errors.New("lines count from 1")}
	case limit == 0:
		return &Error{Op: "read", Path: "0 lines", Kind: ErrInvalid}
	}
	return nil
}

const lineBuf = 128 << 10

func copyLines(ctx context.Context, w io.Writer, r io.Reader, offset, limit int64) (written int64, err error) {
	skip := offset - 1
	buf := make([]byte, lineBuf)
	for limit != 0 {
		if err := ctx.Err(); err != nil {
			return written, err
		}
		n, readErr := r.Read(buf)
		b := buf[:n]
		for skip > 0 && len(b) > 0 {
			var done int64
			b, done = dropLines(b, skip)
			skip -= done
		}
		if skip == 0 && limit > 0 {
			rest, done := dropLines(b, limit)
			b = b[:len(b)-len(rest)]
			limit -= done
		}
		if skip == 0 && len(b) > 0 {
			m, err := w.Write(b)
			written += int64(m)
			if err != nil {
				return written, err
			}
		}
		if readErr == io.EOF {
			return written, nil
		}
		if readErr != nil {
			return written, readErr
		}
	}
	return written, nil
}

// dropLines cuts up to n line ends off the front of b, or all of b when it holds fewer, and says how many it cut.
func dropLines(b []byte, n int64) (rest []byte, done int64) {
	if have := int64(bytes.Count(b, []byte{'\n'})); have < n {
		return nil, have
	}
	for done < n {
		b = b[bytes.IndexByte(b, '\n')+1:]
		done++
	}
	return b, done
}

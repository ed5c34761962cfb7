package server

import (
	"math/bits"
	"strconv"
	"unicode/utf8"
)

const hexDigits = "0123456789abcdef"

// plain marks the bytes that stand for themselves in a JSON string.
var plain = func() (t [256]bool) {
	for i := 0x20; i < 0x80; i++ {
		t[i] = i != '"' && i != '\\' && i != 0x7F
	}
	t[0x7F] = true
	return t
}()

// appendJSON appends s as a JSON string. Invalid UTF-8 becomes U+FFFD, a character for each bad byte. U+0085,
// U+2028 and U+2029 are escaped, since some clients split lines there; <, > and & are not (RFC 8259 section 7).
func appendJSON[T ~string | ~[]byte](b []byte, s T) []byte {
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); {
		if i += plainRun(s[i:]); i == len(s) {
			break
		}
		c := s[i]
		if c < utf8.RuneSelf {
			b = append(b, s[start:i]...)
			b = appendEscape(b, c)
			i++
			start = i
			continue
		}
		r, size := decodeRune(s, i)
		if r == utf8.RuneError && size == 1 || r == 0x85 || r == 0x2028 || r == 0x2029 {
			b = append(b, s[start:i]...)
			b = append(b, '\\', 'u', hexDigits[r>>12&15], hexDigits[r>>8&15], hexDigits[r>>4&15], hexDigits[r&15])
			i += size
			start = i
			continue
		}
		i += size
	}
	b = append(b, s[start:]...)
	return append(b, '"')
}

// plainRun returns how many bytes at the start of s stand for themselves. It looks at eight at a time.
func plainRun[T ~string | ~[]byte](s T) int {
	const (
		ones  = 0x0101010101010101
		highs = 0x8080808080808080
	)
	i := 0
	for ; i+8 <= len(s); i += 8 {
		w := s[i : i+8]
		x := uint64(w[0]) | uint64(w[1])<<8 | uint64(w[2])<<16 | uint64(w[3])<<24 |
			uint64(w[4])<<32 | uint64(w[5])<<40 | uint64(w[6])<<48 | uint64(w[7])<<56
		// The high bit of each byte below 0x20, equal to a quote or a backslash, or not ASCII. A borrow can mark a byte
		// too many, but only above one that is marked rightly.
		quote, slash := x^ones*'"', x^ones*0x5c
		m := (x | (x - ones*0x20) | (quote - ones) | (slash - ones)) & highs
		if m != 0 {
			return i + bits.TrailingZeros64(m)/8
		}
	}
	for i < len(s) && plain[s[i]] {
		i++
	}
	return i
}

func decodeRune[T ~string | ~[]byte](s T, i int) (rune, int) {
	return utf8.DecodeRuneInString(string(s[i:min(len(s), i+utf8.UTFMax)])) // doesn't escape: no allocation
}

func appendEscape(b []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(b, '\\', c)
	case '\n':
		return append(b, '\\', 'n')
	case '\r':
		return append(b, '\\', 'r')
	case '\t':
		return append(b, '\\', 't')
	}
	return append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
}

// appendJSONValue appends a JSON value as it is, but for raw line ends and the three separators that must not stand
// raw on the wire. The value is valid JSON, so raw control characters stand between tokens only and the separators
// in strings only.
func appendJSONValue(b []byte, v []byte) []byte {
	start := 0
	for i := 0; i < len(v); i++ {
		switch c := v[i]; {
		case c == '\n' || c == '\r':
			b = append(b, v[start:i]...)
			b = append(b, ' ')
			start = i + 1
		case c == 0xC2 && i+1 < len(v) && v[i+1] == 0x85:
			b = append(append(b, v[start:i]...), `\u0085`...)
			i++
			start = i + 1
		case c == 0xE2 && i+2 < len(v) && v[i+1] == 0x80 && (v[i+2] == 0xA8 || v[i+2] == 0xA9):
			b = append(append(b, v[start:i]...), `\u202`...)
			b = append(b, '8'+v[i+2]-0xA8)
			i += 2
			start = i + 1
		}
	}
	return append(b, v[start:]...)
}

func appendInt(b []byte, key string, n int64) []byte {
	b = append(b, key...)
	return strconv.AppendInt(b, n, 10)
}

package hooks

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// cutAll cuts the concatenation of chunks with Next.
func cutAll(chunks ...[]byte) (pieces []piece, c Cutter) {
	var pend []byte
	for _, data := range chunks {
		for len(data) > 0 {
			text, used, end := c.Next(data)
			pend = append(pend, data[:text]...)
			data = data[used:]
			if end == Line || end == Partial {
				pieces = append(pieces, piece{text: string(pend), partial: end == Partial})
				pend = pend[:0]
			}
		}
	}
	if len(pend) > 0 {
		pieces = append(pieces, piece{text: string(pend)})
	}
	return pieces, c
}

// plainCut is the definition: lines by their terminators, and a line's pieces by its characters. It knows valid UTF-8
// only.
func plainCut(text string) (pieces []piece) {
	text = strings.ReplaceAll(strings.ReplaceAll(text, "\r\n", "\n"), "\r", "\n")
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if i == len(lines)-1 && line == "" {
			break
		}
		for {
			n := MaxLine - 3
			for n < len(line) && !utf8.RuneStart(line[n]) {
				n++
			}
			if n >= len(line) {
				break
			}
			pieces = append(pieces, piece{text: line[:n], partial: true})
			line = line[n:]
		}
		pieces = append(pieces, piece{text: line})
	}
	return pieces
}

// chop cuts data into random chunks, none empty: small ones at its end, where a long line may end too.
func chop(t *rapid.T, data []byte) (chunks [][]byte) {
	most := rapid.SampledFrom([]int{1, 2, 3, 5, 17, 1000, 70_000, MaxLine + 3}).Draw(t, "most")
	for len(data) > 0 {
		size := most
		if len(data) > 100 {
			size = max(most, len(data)/3)
		}
		n := min(len(data), rapid.IntRange(1, size).Draw(t, "n"))
		chunks = append(chunks, data[:n])
		data = data[n:]
	}
	return chunks
}

// text generates output: short and empty lines, all terminators, characters of all lengths, lines near and past
// MaxLine, and, unless valid is set, any bytes.
func text(valid bool) *rapid.Generator[[]byte] {
	bits := []string{"\n", "\r", "\r\n", "\n\n", "a", "line\n", "50%\r", "é", "漢", "😀", "\u2028", strings.Repeat("b", 600)}
	if !valid {
		bits = append(bits, "\xff", "\x80", "\xe6\xbc", "\xf0\x9f", "\xf0", "\xc3", "\xed\xa0\x80", "\x00")
	}
	return rapid.Custom(func(t *rapid.T) []byte {
		var b []byte
		for range rapid.IntRange(0, 25).Draw(t, "bits") {
			b = append(b, rapid.SampledFrom(bits).Draw(t, "bit")...)
		}
		if rapid.IntRange(0, 7).Draw(t, "long") == 0 {
			unit := rapid.SampledFrom([]string{"x", "é", "漢", "😀"}).Draw(t, "unit")
			if !valid && rapid.Bool().Draw(t, "broken") {
				unit = rapid.SampledFrom([]string{"\xff", "\x80", "\xf0", "\xf0\x9f"}).Draw(t, "bytes")
			}
			n := rapid.IntRange(MaxLine-8, MaxLine+8).Draw(t, "length")
			b = append(b, bytes.Repeat([]byte(unit), n/len(unit))...)
			for range rapid.IntRange(0, 6).Draw(t, "after") {
				b = append(b, rapid.SampledFrom(bits).Draw(t, "bit")...)
			}
		}
		return b
	})
}

func TestCutsAreThoseOfTheDefinition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		data := text(true).Draw(t, "data")
		got, _ := cutAll(chop(t, data)...)
		diff(t, got, plainCut(string(data)))
	})
}

func TestCutsDontDependOnChunks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		data := text(false).Draw(t, "data")
		want, end := cutAll(data)
		chunks := chop(t, data)
		got, c := cutAll(chunks...)
		diff(t, got, want)
		if c != end {
			t.Fatalf("state %+v, want %+v", c, end)
		}
		var skipped Cutter
		for _, p := range chunks {
			skipped.Skip(p)
		}
		if skipped != end {
			t.Fatalf("Skip: state %+v, want %+v", skipped, end)
		}
	})
}

func TestPiecesHoldAllBytesOfLongLines(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		data := text(false).Draw(t, "data")
		checkPieces(t, data)
	})
}

func checkPieces(t interface{ Fatalf(string, ...any) }, data []byte) {
	pieces, c := cutAll(data)
	var all []byte
	for i, p := range pieces {
		all = append(all, p.text...)
		last := i == len(pieces)-1 && c.Len() > 0
		switch {
		case len(p.text) > MaxLine:
			t.Fatalf("piece of %d bytes", len(p.text))
		case p.partial && len(p.text) < MaxLine-3:
			t.Fatalf("partial piece of %d bytes", len(p.text))
		case p.partial && i == len(pieces)-1:
			t.Fatalf("the last piece is partial")
		case p.partial && pieces[i+1].text == "":
			t.Fatalf("a line ends in an empty piece")
		case last && c.Len() != len(p.text):
			t.Fatalf("%d bytes unfinished, want %d", c.Len(), len(p.text))
		}
	}
	without := bytes.ReplaceAll(bytes.ReplaceAll(data, []byte("\n"), nil), []byte("\r"), nil)
	if !bytes.Equal(all, without) {
		t.Fatalf("pieces have %d bytes, want %d", len(all), len(without))
	}
}

func TestALineOfExactlyOnePieceIsNotPartial(t *testing.T) {
	for n := MaxLine - 4; n <= MaxLine+1; n++ {
		line := strings.Repeat("x", n)
		for _, end := range []string{"", "\n", "\r", "\r\n"} {
			got, _ := cutAll([]byte(line + end))
			want := []piece{{text: line}}
			if n > MaxLine-3 {
				want = []piece{{text: line[:MaxLine-3], partial: true}, {text: line[MaxLine-3:]}}
			}
			diff(t, got, want)
		}
	}
}

func TestCarriageReturnEndsItsLineAtOnce(t *testing.T) {
	var c Cutter
	if _, used, end := c.Next([]byte("10%\r")); used != 4 || end != Line {
		t.Fatalf("used %d, end %d", used, end)
	}
	if _, used, end := c.Next([]byte("\n")); used != 1 || end != Joined {
		t.Fatalf("line feed after it: used %d, end %d", used, end)
	}
	if text, used, end := c.Next([]byte("\n")); text != 0 || used != 1 || end != Line {
		t.Fatalf("a second line feed: used %d, end %d", used, end)
	}
}

// diff compares pieces; long texts are shown by their length.
func diff(t interface{ Fatalf(string, ...any) }, got, want []piece) {
	for i := range min(len(got), len(want)) {
		if g, w := got[i], want[i]; g.text != w.text || g.partial != w.partial {
			t.Fatalf("piece %d: %d bytes %.30q partial %v\nwant %d bytes %.30q partial %v",
				i, len(g.text), g.text, g.partial, len(w.text), w.text, w.partial)
		}
	}
	if len(got) != len(want) {
		t.Fatalf("%d pieces, want %d", len(got), len(want))
	}
}

func FuzzCutter(f *testing.F) {
	f.Add([]byte("a\r\nb\rc\n\n\xf0\x9f\x98\x80"), uint16(3), uint8(0))
	f.Add([]byte("é\r\n"), uint16(1), uint8(1))
	f.Add([]byte("\xf0\x9f\x98\x80\n"), uint16(2), uint8(9))
	f.Fuzz(func(t *testing.T, data []byte, size uint16, short uint8) {
		if short > 0 { // the end of a long line, to be near the end of a piece
			long := bytes.Repeat([]byte("x"), MaxLine-int(short))
			data = append(long, data...)
		}
		var chunks [][]byte
		for rest := data; len(rest) > 0; {
			n := min(len(rest), int(size)+1)
			if len(rest) > 1000 && n < 1000 {
				n = len(rest) - 500
			}
			chunks = append(chunks, rest[:n])
			rest = rest[n:]
		}
		want, end := cutAll(data)
		got, c := cutAll(chunks...)
		diff(t, got, want)
		var skipped Cutter
		for _, p := range chunks {
			skipped.Skip(p)
		}
		if c != end || skipped != end {
			t.Fatalf("states %+v, %+v, want %+v", c, skipped, end)
		}
		checkPieces(t, data)
	})
}

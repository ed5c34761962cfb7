package files

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/bmatcuk/doublestar/v4"
	"golang.org/x/sys/unix"
)

// benchTree makes n files, 100 in a directory, every tenth of them named *.txt.
func benchTree(b *testing.B, n int) string {
	b.Helper()
	dir := b.TempDir()
	for i := range n {
		if i%100 == 0 {
			if err := os.MkdirAll(fmt.Sprintf("%s/%02d/%04d", dir, i/10000, i/100), 0o755); err != nil {
				b.Fatal(err)
			}
		}
		ext := "go"
		if i%10 == 0 {
			ext = "txt"
		}
		if err := unix.Mknod(fmt.Sprintf("%s/%02d/%04d/file-%06d.%s", dir, i/10000, i/100, i, ext), unix.S_IFREG|0o644, 0); err != nil {
			b.Fatal(err)
		}
	}
	return dir
}

// bareInfo is what a handler without this package would send.
type bareInfo struct {
	Path       string    `json:"path"`
	Size       int64     `json:"size"`
	Mode       uint32    `json:"mode"`
	Owner      uint32    `json:"owner"`
	Group      uint32    `json:"group"`
	ModifiedAt time.Time `json:"modified_at"`
}

func bare(path string, info fs.FileInfo) bareInfo {
	st := info.Sys().(*syscall.Stat_t)
	return bareInfo{path, info.Size(), uint32(info.Mode()), st.Uid, st.Gid, info.ModTime()}
}

// BenchmarkSearch compares a search over 100,000 files with its floor: filepath.WalkDir with the same matching, which
// only counts what it finds, and one that describes and encodes it with the standard library.
func BenchmarkSearch(b *testing.B) {
	dir := benchTree(b, 100_000)
	for _, pattern := range []string{"**/*.txt", "**/*"} {
		walk := func(found func(path string, d fs.DirEntry) error) error {
			return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
				if err != nil || d.IsDir() || !doublestar.MatchUnvalidated(pattern, path[min(len(path), len(dir)+1):]) {
					return err
				}
				return found(path, d)
			})
		}
		b.Run(pattern+"/floor-walk", func(b *testing.B) {
			for b.Loop() {
				n := 0
				if err := walk(func(string, fs.DirEntry) error { n++; return nil }); err != nil || n == 0 {
					b.Fatal(n, err)
				}
			}
		})
		b.Run(pattern+"/floor-json", func(b *testing.B) {
			for b.Loop() {
				var all []bareInfo
				err := walk(func(path string, d fs.DirEntry) error {
					info, err := d.Info()
					all = append(all, bare(path, info))
					return err
				})
				if err != nil {
					b.Fatal(err)
				}
				if err := json.NewEncoder(io.Discard).Encode(all); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(pattern+"/celld-find", func(b *testing.B) {
			for b.Loop() {
				n := 0
				if err := (FS{}).Search(b.Context(), dir, pattern, func(*Info) error { n++; return nil }); err != nil || n == 0 {
					b.Fatal(n, err)
				}
			}
		})
		b.Run(pattern+"/celld-json", func(b *testing.B) {
			for b.Loop() {
				w := NewArrayWriter(io.Discard)
				if err := (FS{}).Search(b.Context(), dir, pattern, w.Add); err != nil {
					b.Fatal(err)
				}
				if err := w.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkInfo compares describing 1,000 files with os.Lstat and encoding/json.
func BenchmarkInfo(b *testing.B) {
	dir := benchTree(b, 1000)
	paths := []string{}
	if err := (FS{}).Search(b.Context(), dir, "", func(i *Info) error { paths = append(paths, i.Path); return nil }); err != nil {
		b.Fatal(err)
	}
	b.Run("floor", func(b *testing.B) {
		for b.Loop() {
			all := map[string]bareInfo{}
			for _, path := range paths {
				info, err := os.Lstat(path)
				if err != nil {
					b.Fatal(err)
				}
				all[path] = bare(path, info)
			}
			if err := json.NewEncoder(io.Discard).Encode(all); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("celld", func(b *testing.B) {
		for b.Loop() {
			infos, err := FS{}.Infos(paths)
			if err != nil {
				b.Fatal(err)
			}
			if len(AppendJSONMap(nil, paths, infos)) == 0 {
				b.Fatal("nothing")
			}
		}
	})
}

// BenchmarkList compares listing one directory of 100,000 entries with os.ReadDir, Info and encoding/json.
func BenchmarkList(b *testing.B) {
	dir := b.TempDir()
	for i := range 100_000 {
		if err := unix.Mknod(fmt.Sprintf("%s/file-%06d", dir, i), unix.S_IFREG|0o644, 0); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("floor", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			entries, err := os.ReadDir(dir)
			if err != nil {
				b.Fatal(err)
			}
			all := []bareInfo{}
			for _, e := range entries {
				info, err := e.Info()
				if err != nil {
					b.Fatal(err)
				}
				all = append(all, bare(filepath.Join(dir, e.Name()), info))
			}
			if err := json.NewEncoder(io.Discard).Encode(all); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("celld", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			w := NewArrayWriter(io.Discard)
			if err := (FS{}).List(b.Context(), dir, 1, w.Add); err != nil {
				b.Fatal(err)
			}
			if err := w.Close(); err != nil {
				b.Fatal(err)
			}
		}
	})
}

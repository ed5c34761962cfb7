package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

func fileBenchmarks() []benchmark {
	return []benchmark{
		{"files-download", "1 GB from /files/download; floor: http.ServeContent", filesDownload},
		{"files-upload", "1 GB to /files/upload; floor: a bare handler that writes the part to a file and fsyncs it", filesUpload},
		{"files-small", "downloads and uploads of 1 KB, one after the other; the same floors", filesSmall},
		{"files-info", "/files/info of 1,000 files; floor: a bare handler around lstat", filesInfo},
		{"files-search", "/files/search over 100,000 files of which 1,000 match; floor: a bare handler around filepath.WalkDir", filesSearch},
	}
}

// filePair is both, if this celld has files.
func (r *run) filePair(ctx context.Context) (*daemon, *floor, error) {
	d, f, err := r.both(ctx, "http")
	if err != nil {
		return nil, nil, err
	}
	err = d.get(ctx, "/files/info?path=/")
	var refused *statusError
	if errors.As(err, &refused) && refused.status == http.StatusNotFound {
		return nil, nil, unavailable("no file operations")
	}
	return d, f, err
}

// makeFile writes size bytes.
func makeFile(name string, size int64) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.CopyN(f, pattern{}, size); err != nil {
		return err
	}
	return f.Sync()
}

// pattern is an endless stream of text.
type pattern struct{}

func (pattern) Read(p []byte) (int, error) {
	const text = "The quick brown fox jumps over the lazy dog, again and again and again.\n"
	for n := 0; n < len(p); {
		n += copy(p[n:], text)
	}
	return len(p), nil
}

// download reads a file whole and checks its size.
func (p *peer) download(ctx context.Context, name string, size int64) error {
	return p.fetch(ctx, "/files/download?path="+name, size)
}

// upload sends a new file, checks its size and removes it.
func (p *peer) upload(ctx context.Context, name string, size int64) (took time.Duration, err error) {
	var around bytes.Buffer
	form := multipart.NewWriter(&around)
	meta, err := form.CreateFormFile("metadata", "metadata")
	if err != nil {
		return 0, err
	}
	fmt.Fprintf(meta, `{"path":%q}`, name)
	if _, err := form.CreateFormFile("file", filepath.Base(name)); err != nil {
		return 0, err
	}
	head := around.Len()
	if err := form.Close(); err != nil {
		return 0, err
	}
	body := io.MultiReader(bytes.NewReader(around.Bytes()[:head]), io.LimitReader(pattern{}, size), bytes.NewReader(around.Bytes()[head:]))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.base+"/files/upload", body)
	if err != nil {
		return 0, err
	}
	req.ContentLength = int64(around.Len()) + size
	req.Header.Set("Content-Type", form.FormDataContentType())
	began := time.Now()
	resp, err := p.http.Do(req)
	if err != nil {
		return 0, err
	}
	answer, err := io.ReadAll(resp.Body)
	took = time.Since(began)
	resp.Body.Close()
	if err != nil || resp.StatusCode >= 300 {
		return 0, fmt.Errorf("upload: %s: %s (%v)", resp.Status, answer, err)
	}
	info, err := os.Stat(name)
	if err != nil {
		return 0, err
	}
	if info.Size() != size {
		return 0, fmt.Errorf("upload of %d bytes stored %d", size, info.Size())
	}
	return took, os.Remove(name)
}

// rates turns a function that takes a time into a side of amounts per second.
func rates(amount float64, f func(ctx context.Context) (time.Duration, error)) side {
	return func(ctx context.Context, n int) ([]float64, error) {
		var got []float64
		for range n {
			took, err := f(ctx)
			if err != nil {
				return nil, err
			}
			got = append(got, amount/took.Seconds())
		}
		return got, nil
	}
}

// clocked takes the time of f.
func clocked(f func(ctx context.Context) error) func(ctx context.Context) (time.Duration, error) {
	return func(ctx context.Context) (time.Duration, error) {
		began := time.Now()
		err := f(ctx)
		return time.Since(began), err
	}
}

// compareFlat is compare, and says what memory celld took beyond its idle size.
func (r *run) compareFlat(ctx context.Context, d *daemon, c contest) error {
	held, err := peak(d.pid, func() error { return r.compare(ctx, c) })
	if err != nil {
		return err
	}
	r.single("peak memory above idle", "MB", (held-d.idle)/mb, atMost(16))
	return nil
}

func filesDownload(ctx context.Context, r *run) error {
	d, f, err := r.filePair(ctx)
	if err != nil {
		return err
	}
	name, size := filepath.Join(r.dir, "big"), pick[int64](r, 200e6, 1e9, 1e9)
	if err := makeFile(name, size); err != nil {
		return err
	}
	of := func(p *peer) side {
		return rates(float64(size)/mb, clocked(func(ctx context.Context) error { return p.download(ctx, name, size) }))
	}
	return r.compareFlat(ctx, d, contest{floor: of(f.peer), celld: of(d.peer), warm: 1, n: 1,
		figures: []figure{middle("speed", "MB/s", atLeast(0.95))}})
}

func filesUpload(ctx context.Context, r *run) error {
	d, f, err := r.filePair(ctx)
	if err != nil {
		return err
	}
	name, size := filepath.Join(r.dir, "sent"), pick[int64](r, 200e6, 1e9, 1e9)
	of := func(p *peer) side {
		return rates(float64(size)/mb, func(ctx context.Context) (time.Duration, error) { return p.upload(ctx, name, size) })
	}
	return r.compareFlat(ctx, d, contest{floor: of(f.peer), celld: of(d.peer), warm: 1, n: 1,
		figures: []figure{middle("speed", "MB/s", atLeast(0.9))}})
}

func filesSmall(ctx context.Context, r *run) error {
	d, f, err := r.filePair(ctx)
	if err != nil {
		return err
	}
	name := filepath.Join(r.dir, "small")
	if err := makeFile(name, 1000); err != nil {
		return err
	}
	down := func(p *peer) side {
		return each(clocked(func(ctx context.Context) error { return p.download(ctx, name, 1000) }))
	}
	up := func(p *peer) side {
		return each(func(ctx context.Context) (time.Duration, error) { return p.upload(ctx, name+".sent", 1000) })
	}
	if err := r.compare(ctx, contest{floor: down(f.peer), celld: down(d.peer), warm: 200, n: pick(r, 500, 2000, 4000), slice: 100,
		figures: []figure{middle("download p50", "ms", atMost(1.5))}}); err != nil {
		return err
	}
	return r.compare(ctx, contest{floor: up(f.peer), celld: up(d.peer), warm: 20, n: pick(r, 50, 200, 400), slice: 25,
		figures: []figure{middle("upload p50", "ms", atMost(1.5))}})
}

// each makes a side of f's times, in seconds.
func each(f func(ctx context.Context) (time.Duration, error)) side {
	return func(ctx context.Context, n int) ([]float64, error) {
		var got []float64
		for range n {
			took, err := f(ctx)
			if err != nil {
				return nil, err
			}
			got = append(got, took.Seconds())
		}
		return got, nil
	}
}

// tree makes n empty files in directories of 1,000; of each hundred one is a .txt.
func tree(root string, n int) ([]string, error) {
	var names []string
	for i := range n {
		dir := filepath.Join(root, fmt.Sprint(i/1000))
		if i%1000 == 0 {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return nil, err
			}
		}
		end := "log"
		if i%100 == 0 {
			end = "txt"
		}
		name := filepath.Join(dir, fmt.Sprint(i%1000, ".", end))
		if err := os.WriteFile(name, nil, 0o644); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, nil
}

// asking takes the rate of a GET whose answer must name so many files.
func asking(p *peer, path string, amount, want int) side {
	return rates(float64(amount), clocked(func(ctx context.Context) error {
		text, err := p.ask(ctx, http.MethodGet, path, "")
		if err != nil {
			return err
		}
		if got := bytes.Count(text, []byte(`"modified_at":`)); got != want {
			return fmt.Errorf("the answer names %d files, not %d", got, want)
		}
		return nil
	}))
}

func filesInfo(ctx context.Context, r *run) error {
	d, f, err := r.filePair(ctx)
	if err != nil {
		return err
	}
	names, err := tree(filepath.Join(r.dir, "t"), 1000)
	if err != nil {
		return err
	}
	path := "/files/info?path=" + strings.Join(names, "&path=")
	return r.compare(ctx, contest{floor: asking(f.peer, path, 1000, 1000), celld: asking(d.peer, path, 1000, 1000),
		warm: 10, n: pick(r, 40, 100, 200), slice: 10, figures: []figure{middle("files", "/s", atLeast(0.7))}})
}

func filesSearch(ctx context.Context, r *run) error {
	d, f, err := r.filePair(ctx)
	if err != nil {
		return err
	}
	n := pick(r, 20_000, 100_000, 100_000)
	root := filepath.Join(r.dir, "t")
	if _, err := tree(root, n); err != nil {
		return err
	}
	path := "/files/search?path=" + root + "&pattern=*.txt"
	return r.compare(ctx, contest{floor: asking(f.peer, path, n, n/100), celld: asking(d.peer, path, n, n/100),
		warm: 1, n: 4, slice: 2, figures: []figure{middle("files", "/s", atLeast(0.7))}})
}

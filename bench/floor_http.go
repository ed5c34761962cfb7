package main

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
)

// serveHTTPFloor serves the bare handlers on a free port, until the process ends.
func serveHTTPFloor() (address string, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /command", floorCommand)
	mux.HandleFunc("GET /pty", floorPTY)
	mux.HandleFunc("GET /message", floorMessage)
	mux.HandleFunc("GET /bytes", floorBytes)
	mux.HandleFunc("GET /files/download", floorDownload)
	mux.HandleFunc("POST /files/upload", floorUpload)
	mux.HandleFunc("GET /files/info", floorInfo)
	mux.HandleFunc("GET /files/search", floorSearch)
	go http.Serve(l, mux)
	return l.Addr().String(), nil
}

// floorCommand runs `bash -c` and sends both its streams as they come, then its exit status.
func floorCommand(w http.ResponseWriter, r *http.Request) {
	var q struct{ Command string }
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	cmd := exec.CommandContext(r.Context(), "bash", "-c", q.Command)
	stdout, err1 := cmd.StdoutPipe()
	stderr, err2 := cmd.StderrPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Trailer", "Exit-Status")
	flush := w.(http.Flusher).Flush
	var mu sync.Mutex
	send := func(from io.Reader) {
		buf := make([]byte, 64<<10)
		for {
			n, err := from.Read(buf)
			if n > 0 {
				mu.Lock()
				w.Write(buf[:n])
				flush()
				mu.Unlock()
			}
			if err != nil {
				return
			}
		}
	}
	done := make(chan struct{})
	go func() {
		send(stderr)
		close(done)
	}()
	send(stdout)
	<-done
	var exit *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		return
	}
	w.Header().Set("Exit-Status", strconv.Itoa(cmd.ProcessState.ExitCode()))
}

func floorDownload(w http.ResponseWriter, r *http.Request) {
	f, err := os.Open(r.FormValue("path"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, r, "", info.ModTime(), f)
}

// floorUpload writes one file and fsyncs it.
func floorUpload(w http.ResponseWriter, r *http.Request) {
	if err := floorStore(r); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

func floorStore(r *http.Request) error {
	parts, err := r.MultipartReader()
	if err != nil {
		return err
	}
	var meta struct{ Path string }
	part, err := parts.NextPart()
	if err != nil {
		return err
	}
	if err := json.NewDecoder(part).Decode(&meta); err != nil {
		return err
	}
	if part, err = parts.NextPart(); err != nil {
		return err
	}
	f, err := os.Create(meta.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.Copy(f, part); err != nil {
		return err
	}
	return f.Sync()
}

// floorEntry is what celld tells of a file, less what needs more than one lstat.
type floorEntry struct {
	Path       string `json:"path"`
	Size       int64  `json:"size"`
	Mode       int    `json:"mode"`
	ModifiedAt string `json:"modified_at"`
}

func entryOf(path string, info fs.FileInfo) floorEntry {
	mode, _ := strconv.Atoi(strconv.FormatInt(int64(info.Mode().Perm()), 8))
	return floorEntry{path, info.Size(), mode, info.ModTime().UTC().Format("2006-01-02T15:04:05.999999999Z")}
}

func floorInfo(w http.ResponseWriter, r *http.Request) {
	all := map[string]floorEntry{}
	for _, path := range r.URL.Query()["path"] {
		info, err := os.Lstat(path)
		if err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		}
		all[path] = entryOf(path, info)
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(all)
}

// floorSearch matches the base names below path.
func floorSearch(w http.ResponseWriter, r *http.Request) {
	found := []floorEntry{}
	pattern := r.FormValue("pattern")
	err := filepath.WalkDir(r.FormValue("path"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if ok, err := filepath.Match(pattern, d.Name()); err != nil || !ok {
			return err
		}
		info, err := d.Info()
		if err == nil {
			found = append(found, entryOf(path, info))
		}
		return err
	})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(found)
}

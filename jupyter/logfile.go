package jupyter

import (
	"bytes"
	"os"
	"strings"
	"sync"
	"time"
)

// maxLog bounds the log file; the one before it is kept too.
const maxLog = 1 << 20

// logFile keeps what a server writes: the newest of it in a file, the last lines in memory. A full disk loses lines
// and never stops the server.
type logFile struct {
	path   string
	source *os.File
	copied sync.WaitGroup

	file *os.File // owned by the copying goroutine once that runs
	size int64

	mu   sync.Mutex
	tail []byte
}

// openLog opens the log at path; empty keeps the last lines only.
func openLog(path string) *logFile {
	l := &logFile{path: path}
	l.reopen(os.O_APPEND)
	return l
}

func (l *logFile) reopen(mode int) {
	if l.path == "" {
		return
	}
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_WRONLY|mode, 0o600)
	if err != nil {
		return
	}
	l.file, l.size = f, 0
	if fi, err := f.Stat(); err == nil {
		l.size = fi.Size()
	}
}

// copy takes source over and copies it until its end or Close.
func (l *logFile) copy(source *os.File) {
	l.source = source
	l.copied.Go(func() {
		buf := make([]byte, 8192)
		for {
			n, err := source.Read(buf)
			l.keep(buf[:n])
			if err != nil {
				return
			}
		}
	})
}

func (l *logFile) keep(p []byte) {
	const most = 4096
	l.mu.Lock()
	l.tail = append(l.tail, p...)
	if n := len(l.tail); n > 2*most {
		l.tail = append(l.tail[:0], l.tail[n-most:]...)
	}
	l.mu.Unlock()
	if l.file == nil {
		return
	}
	if l.size > maxLog {
		_ = l.file.Close()
		l.file = nil
		_ = os.Rename(l.path, l.path+".1")
		if l.reopen(os.O_TRUNC); l.file == nil {
			return
		}
	}
	n, _ := l.file.Write(p)
	l.size += int64(n)
}

// restWithin bounds the wait for the end of what ended processes have written.
const restWithin = time.Second

// lastLine is the last line with text that has arrived. It waits for the end of the source, but not for a process that
// got away and still holds it: what those that have ended wrote is in the pipe already.
func (l *logFile) lastLine() string {
	_ = l.source.SetReadDeadline(time.Now().Add(restWithin))
	l.copied.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := bytes.Split(bytes.TrimSpace(l.tail), []byte("\n"))
	return strings.TrimSpace(string(lines[len(lines)-1]))
}

// Close ends copying, also while somebody still holds the other end.
func (l *logFile) Close() {
	if l.source != nil {
		_ = l.source.Close()
		l.copied.Wait()
	}
	if l.file != nil {
		_ = l.file.Close()
	}
}

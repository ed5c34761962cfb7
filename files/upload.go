package files

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/celld/celld/internal/exactjson"
	"golang.org/x/sys/unix"
)

// Meta says where an uploaded file goes. Without a mode, a file that is there keeps its own and a new one gets 0644;
// without an owner or group, a file that is there keeps them as far as celld may.
type Meta struct {
	Path string `json:"path"`
	Perm
}

// Limits of one upload.
const (
	maxMeta  = 64 << 10 // bytes of one metadata part
	maxPairs = 10_000   // files
)

// Upload stores the files of a multipart body: parts named "metadata", each a Meta in JSON, and parts named "file",
// the n-th going where the n-th metadata says; metadata comes first. Other parts are ignored. It returns the number
// of files and their bytes.
//
// Each file is streamed to a temporary file beside its target, gets its mode and owner there, whatever the umask, and
// is synced to disk. When the whole body has been read, all are renamed to their targets, so nothing is seen half
// written, and of a body that breaks off or holds a file that is refused, nothing is. Missing parents are made on the
// way, as by MakeDirs. A link is followed to where the file is. Where the target can't be replaced, since it is a mount
// point or its directory is read-only, the file is written in place, after it has been received.
//
// The error is ErrForm, ErrMetadata, ErrContent, ErrIsDir, ErrNotRegular, ErrTooLarge, ErrNoSpace, ErrPermission or
// ctx's.
func (f FS) Upload(ctx context.Context, body *multipart.Reader) (count int, size int64, err error) {
	u := upload{fs: f}
	defer u.cleanUp()
	if err := u.receive(ctx, body); err != nil {
		return 0, 0, err
	}
	for i := range u.staged {
		if err := ctx.Err(); err != nil {
			return 0, 0, err
		}
		if err := u.staged[i].commit(); err != nil {
			return 0, 0, failCreate("upload", u.staged[i].meta.Path, err)
		}
	}
	return len(u.staged), u.size, nil
}

// upload is one request's files on their way.
type upload struct {
	fs      FS
	waiting []Meta // metadata whose file hasn't come yet
	staged  []staged
	size    int64
	buf     []byte
}

// staged is a complete file that isn't yet where it belongs.
type staged struct {
	meta   Meta
	target string   // absolute, no link
	temp   string   // beside target; empty once it has been renamed, and if there is only file
	file   *os.File // where nothing can be put beside target: a file without a name
}

func (u *upload) receive(ctx context.Context, body *multipart.Reader) error {
	for {
		part, err := body.NextPart()
		if err == io.EOF {
			break
		}
		if err != nil {
			return u.broken(ctx, "next part", err)
		}
		if err := u.part(ctx, part); err != nil {
			return err
		}
	}
	switch {
	case len(u.waiting) > 0:
		return &Error{Op: "upload", Path: u.waiting[0].Path, Kind: ErrContent}
	case len(u.staged) == 0:
		return &Error{Op: "upload", Path: "request", Kind: ErrForm, Err: errors.New("there are no parts named metadata and file")}
	}
	return nil
}

func (u *upload) part(ctx context.Context, part *multipart.Part) error {
	defer part.Close()
	switch part.FormName() {
	case "metadata":
		if len(u.waiting)+len(u.staged) >= maxPairs {
			return &Error{Op: "upload", Path: "request", Kind: ErrTooLarge, Err: fmt.Errorf("more than %d files", maxPairs)}
		}
		meta, err := u.metadata(ctx, part)
		if err == nil {
			u.waiting = append(u.waiting, meta)
		}
		return err
	case "file":
		if len(u.waiting) == 0 {
			return &Error{Op: "upload", Path: part.FileName(), Kind: ErrMetadata, Err: errors.New("a file comes after its metadata")}
		}
		meta := u.waiting[0]
		u.waiting = u.waiting[1:]
		return u.stage(ctx, meta, part)
	}
	return nil
}

func (u *upload) metadata(ctx context.Context, part io.Reader) (Meta, error) {
	raw, err := io.ReadAll(io.LimitReader(part, maxMeta+1))
	if err != nil {
		return Meta{}, u.broken(ctx, "metadata", err)
	}
	if len(raw) > maxMeta {
		return Meta{}, &Error{Op: "upload", Path: "metadata", Kind: ErrTooLarge, Err: fmt.Errorf("more than %d bytes", maxMeta)}
	}
	var meta Meta
	if err := exactjson.Decode(raw, &meta, exactjson.Ignore); err != nil {
		return Meta{}, &Error{Op: "upload", Path: "metadata", Kind: ErrMetadata, Err: err}
	}
	if meta.Path == "" {
		return Meta{}, &Error{Op: "upload", Path: "metadata", Kind: ErrMetadata, Err: errors.New("the path is missing")}
	}
	return meta, nil
}

// broken is the error for a body that could not be read: the form is at fault unless ctx ended it.
func (u *upload) broken(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return &Error{Op: "upload", Path: what, Kind: ErrForm, Err: err}
}

// stage receives one file.
func (u *upload) stage(ctx context.Context, meta Meta, content io.Reader) error {
	target, old, to, err := u.target(meta)
	if err != nil {
		return failCreate("upload", meta.Path, err)
	}
	out, named, err := u.create(target)
	if err != nil {
		return failCreate("upload", meta.Path, err)
	}
	s := staged{meta: meta, target: target}
	if named {
		s.temp = out.Name()
	} else {
		s.file = out
	}
	u.staged = append(u.staged, s)
	if named {
		defer out.Close()
	}
	n, err := u.copy(ctx, out, content)
	u.size += n
	if err != nil {
		return err
	}
	if named {
		err = settle(out, old, to)
	}
	return fail("upload", meta.Path, err)
}

// target returns where meta's file goes, its parent being there, the status of the file there now, nil for none, and
// what mode and owner are asked for.
func (u *upload) target(meta Meta) (target string, old *syscall.Stat_t, to access, err error) {
	if to, err = meta.resolve(); err != nil {
		return "", nil, to, &Error{Op: "upload", Path: meta.Path, Kind: ErrMetadata, Err: err}
	}
	abs, err := u.fs.Abs(meta.Path)
	if err != nil {
		return "", nil, to, err
	}
	if strings.HasSuffix(meta.Path, "/") {
		return "", nil, to, ErrIsDir
	}
	if target, err = follow(abs); err != nil {
		return "", nil, to, err
	}
	info, err := os.Lstat(target)
	if err == nil {
		old = info.Sys().(*syscall.Stat_t)
		return target, old, to, regular(old.Mode)
	}
	if !errors.Is(err, unix.ENOENT) {
		return "", nil, to, err
	}
	return target, nil, to, makeParents(target, to)
}

// create makes the file that target's content is received in: a temporary one beside it, or, if that isn't permitted
// but target itself can be written, one without a name elsewhere.
func (u *upload) create(target string) (file *os.File, named bool, err error) {
	temp := filepath.Join(filepath.Dir(target), tempName())
	file, err = os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil || kindOf(err) != ErrPermission || unix.Access(target, unix.W_OK) != nil {
		return file, true, err
	}
	file, err = scratch()
	return file, false, err
}

// tempName is a name nobody else uses, for a file that is to be renamed.
func tempName() string { return ".celld-" + rand.Text() }

const (
	smallBuf  = 8 << 10 // enough for many files
	uploadBuf = 128 << 10
)

// copy is io.Copy with writes of a size that doesn't depend on the parser of the body, and tells apart whose error
// it is.
func (u *upload) copy(ctx context.Context, out *os.File, content io.Reader) (int64, error) {
	if u.buf == nil {
		u.buf = make([]byte, smallBuf)
	}
	t := trickle{file: out}
	for {
		if err := ctx.Err(); err != nil {
			return t.written, err
		}
		n, readErr := fill(content, u.buf)
		_, err := out.Write(u.buf[:n])
		if err == nil {
			err = t.wrote(n)
		}
		if err != nil {
			return t.written, fail("upload", u.staged[len(u.staged)-1].meta.Path, err)
		}
		if readErr == io.EOF {
			return t.written, nil
		}
		if readErr != nil {
			return t.written, u.broken(ctx, "file", readErr)
		}
		if len(u.buf) < uploadBuf {
			u.buf = make([]byte, uploadBuf)
		}
	}
}

// fill reads until buf is full or r ends. Unlike io.ReadFull it hands on r's error as it is.
func fill(r io.Reader, buf []byte) (n int, err error) {
	for n < len(buf) && err == nil {
		var m int
		m, err = r.Read(buf[n:])
		n += m
	}
	return n, err
}

// settle gives the received file its mode and owner, and syncs it. What isn't asked for is as old has it, an owner as
// far as we may set it, or the default.
func settle(out *os.File, old *syscall.Stat_t, to access) error {
	if err := settleOwner(out, old, to); err != nil {
		return err
	}
	switch {
	case to.mode >= 0:
	case old != nil:
		to.mode = int(old.Mode & permBits)
	default:
		to.mode = 0o644
	}
	if err := out.Chmod(fileMode(uint32(to.mode))); err != nil {
		return err
	}
	return out.Sync()
}

func settleOwner(out *os.File, old *syscall.Stat_t, to access) error {
	if old != nil {
		info, err := out.Stat()
		if err != nil {
			return err
		}
		now := info.Sys().(*syscall.Stat_t)
		if to.uid < 0 && now.Uid != old.Uid {
			_ = out.Chown(int(old.Uid), -1)
		}
		if to.gid < 0 && now.Gid != old.Gid {
			_ = out.Chown(-1, int(old.Gid))
		}
	}
	if to.uid < 0 && to.gid < 0 {
		return nil
	}
	return out.Chown(to.uid, to.gid)
}

// commit puts the file in its place.
func (s *staged) commit() error {
	if s.temp == "" {
		return s.writeOver(s.file)
	}
	err := os.Rename(s.temp, s.target)
	if err == nil {
		s.temp = ""
		return nil
	}
	if !errors.Is(err, unix.EBUSY) {
		return err
	}
	// A mount point, as /etc/hosts is in many containers.
	file, err := os.Open(s.temp)
	if err != nil {
		return err
	}
	defer file.Close()
	return s.writeOver(file)
}

// writeOver copies content over the target, which stays the file it is.
func (s *staged) writeOver(content *os.File) error {
	out, _, err := openRegular(s.target, unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer out.Close()
	before, err := out.Stat()
	if err != nil {
		return err
	}
	size, err := content.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if err := overwrite(out, before, content, size, 0); err != nil {
		return err
	}
	to, err := s.meta.resolve()
	if err != nil {
		return err
	}
	if err := to.apply(s.target); err != nil {
		return err
	}
	return out.Sync()
}

// cleanUp removes what was only needed on the way.
func (u *upload) cleanUp() {
	for i := range u.staged {
		if s := &u.staged[i]; s.file != nil {
			s.file.Close()
		} else if s.temp != "" {
			os.Remove(s.temp)
		}
	}
}

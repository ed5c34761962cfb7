package proctree

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrMayNotSwitch says that this process may not start children as another user.
var ErrMayNotSwitch = errors.New("not allowed to run things as another user")

// Identity is whom to run a process as.
type Identity struct {
	Credential *syscall.Credential // nil: no switch is needed
	Name       string              // login name; empty without a passwd entry
	Home       string              // home directory; "/" without a passwd entry
}

// Identify finds out what running as uid means: the group gid, or if nil the user's own, and the supplementary groups
// that the group file gives the user. A uid without a passwd entry has no groups but gid, or if nil a group of its own number.
// The error is ErrMayNotSwitch if this process has no right to become that user.
//
// It reads /etc/passwd and /etc/group itself (passwd(5), group(5)): other sources of users are not asked.
func Identify(uid uint32, gid *uint32) (Identity, error) {
	id, cred, err := identify("/etc/passwd", "/etc/group", uid, gid)
	if err != nil {
		return Identity{}, fmt.Errorf("look up user %d: %w", uid, err)
	}
	may, err := maySwitch()
	switch {
	case err != nil:
		return Identity{}, err
	case may:
		id.Credential = cred
		setgroups, err := os.ReadFile("/proc/self/setgroups")
		cred.NoSetGroups = err == nil && strings.TrimSpace(string(setgroups)) == "deny" // user_namespaces(7)
	case int(uid) != os.Geteuid() || gid != nil && int(*gid) != os.Getegid():
		return Identity{}, fmt.Errorf("user %d: %w", uid, ErrMayNotSwitch)
	}
	return id, nil
}

func identify(passwd, group string, uid uint32, gid *uint32) (Identity, *syscall.Credential, error) {
	id := Identity{Home: "/"}
	cred := &syscall.Credential{Uid: uid, Gid: uid}
	err := eachEntry(passwd, 7, func(f []string) bool { // name:password:uid:gid:comment:home:shell
		if n, ok := number(f[2]); !ok || n != uid {
			return true
		}
		id.Name, id.Home = f[0], f[5]
		if g, ok := number(f[3]); ok {
			cred.Gid = g
		}
		return false
	})
	if err != nil {
		return Identity{}, nil, err
	}
	if gid != nil {
		cred.Gid = *gid
	}
	cred.Groups = []uint32{cred.Gid}
	if id.Name == "" {
		return id, cred, nil
	}
	err = eachEntry(group, 4, func(f []string) bool { // name:password:gid:members
		g, ok := number(f[2])
		if ok && !slices.Contains(cred.Groups, g) && slices.Contains(strings.Split(f[3], ","), id.Name) {
			cred.Groups = append(cred.Groups, g)
		}
		return true
	})
	return id, cred, err
}

// Env is what a login sets, in the form of an environment.
func (id Identity) Env() []string {
	if id.Name == "" {
		return []string{"HOME=" + id.Home}
	}
	return []string{"HOME=" + id.Home, "USER=" + id.Name, "LOGNAME=" + id.Name}
}

// maySwitch says whether this process has the capabilities to change user and groups.
func maySwitch() (bool, error) {
	var data [2]unix.CapUserData
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return false, os.NewSyscallError("capget", err)
	}
	const both = 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID
	return data[0].Effective&both == both, nil
}

// eachEntry calls f with the fields of each line of a colon-separated file that has that many, until f says false. A
// file that isn't there has no lines.
func eachEntry(path string, fields int, f func([]string) bool) error {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	return scanEntries(file, fields, f)
}

func scanEntries(r io.Reader, fields int, f func([]string) bool) error {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		if split := strings.Split(strings.TrimSuffix(line, "\n"), ":"); len(split) == fields && !f(split) {
			return nil
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func number(s string) (uint32, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err == nil
}

package files

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/user"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// Perm is a mode and ownership to set; what is absent stays as it is.
type Perm struct {
	Mode  *int    `json:"mode,omitempty"`  // octal digits written in decimal: 755, 1777; nil: absent
	Owner Account `json:"owner,omitempty"` // user
	Group Account `json:"group,omitempty"`
}

// Account is a user or a group by name, or by number where no name reads so; empty: absent. In JSON it is a string,
// a number or null.
type Account string

// UnmarshalJSON takes a string, a whole number or null.
func (a *Account) UnmarshalJSON(b []byte) error {
	if bytes.Equal(b, []byte("null")) {
		return nil
	}
	if len(b) > 0 && b[0] == '"' {
		return json.Unmarshal(b, (*string)(a))
	}
	id, err := strconv.ParseUint(string(b), 10, 32)
	if err != nil {
		return fmt.Errorf("a user or group is a name or a number, not %s", b)
	}
	*a = Account(strconv.FormatUint(id, 10))
	return nil
}

// ParseMode reads the decimal digits of mode as octal ones: 755 is rwxr-xr-x. The error is ErrInvalid for a digit
// above 7, a negative number and one past 7777.
func ParseMode(mode int) (uint32, error) {
	bits, err := strconv.ParseUint(strconv.Itoa(mode), 8, 32)
	if err != nil || bits > permBits {
		return 0, &Error{Op: "set mode", Path: strconv.Itoa(mode), Kind: ErrInvalid, Err: errors.New("not up to four octal digits")}
	}
	return uint32(bits), nil
}

// access is a Perm with its names resolved; -1 where something is absent.
type access struct{ mode, uid, gid int }

func (p Perm) resolve() (access, error) {
	a := access{mode: -1}
	if p.Mode != nil {
		bits, err := ParseMode(*p.Mode)
		if err != nil {
			return a, err
		}
		a.mode = int(bits)
	}
	var err error
	if a.uid, err = accountID(p.Owner, userID); err != nil {
		return a, &Error{Op: "set owner", Path: string(p.Owner), Kind: ErrInvalid, Err: err}
	}
	if a.gid, err = accountID(p.Group, groupID); err != nil {
		return a, &Error{Op: "set group", Path: string(p.Group), Kind: ErrInvalid, Err: err}
	}
	return a, nil
}

func userID(name string) (string, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return "", err
	}
	return u.Uid, nil
}

func groupID(name string) (string, error) {
	g, err := user.LookupGroup(name)
	if err != nil {
		return "", err
	}
	return g.Gid, nil
}

// accountID looks name up, then reads it as a number; -1 when it is empty.
func accountID(name Account, lookup func(string) (string, error)) (int, error) {
	if name == "" {
		return -1, nil
	}
	digits, err := lookup(string(name))
	if err != nil {
		digits = string(name)
	}
	// The highest number means "unchanged" to chown(2), so nobody has it.
	id, numErr := strconv.ParseUint(digits, 10, 32)
	if numErr != nil || id == 1<<32-1 {
		return -1, errors.New("no such account")
	}
	return int(id), nil
}

// apply sets a on what path leads to. The owner goes first: changing it clears setuid and setgid.
func (a access) apply(path string) error {
	if a.uid >= 0 || a.gid >= 0 {
		if err := os.Chown(path, a.uid, a.gid); err != nil {
			return err
		}
	}
	if a.mode >= 0 {
		return os.Chmod(path, fileMode(uint32(a.mode)))
	}
	return nil
}

// fileMode translates the bits of chmod(2) into those of package os.
func fileMode(bits uint32) os.FileMode {
	mode := os.FileMode(bits & 0o777)
	for _, b := range []struct {
		unix uint32
		mode os.FileMode
	}{{unix.S_ISUID, os.ModeSetuid}, {unix.S_ISGID, os.ModeSetgid}, {unix.S_ISVTX, os.ModeSticky}} {
		if bits&b.unix != 0 {
			mode |= b.mode
		}
	}
	return mode
}

// SetPerms sets the mode and owner of each path, through links, in the order of the paths. The error is ErrInvalid
// for a mode that isn't octal and an unknown owner or group, and ErrNotFound; nothing has been changed then.
func (f FS) SetPerms(ctx context.Context, perms map[string]Perm) error {
	type change struct {
		path, abs string
		to        access
	}
	var changes []change
	for _, path := range slices.Sorted(maps.Keys(perms)) {
		abs, err := f.Abs(path)
		if err != nil {
			return err
		}
		to, err := perms[path].resolve()
		if err != nil {
			return err
		}
		if _, err := os.Stat(abs); err != nil {
			return fail("set permissions of", path, err)
		}
		changes = append(changes, change{path, abs, to})
	}
	for _, c := range changes {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := c.to.apply(c.abs); err != nil {
			return fail("set permissions of", c.path, err)
		}
	}
	return nil
}

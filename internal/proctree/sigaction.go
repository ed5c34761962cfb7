package proctree

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sigaction sets a disposition behind the Go runtime's back (rt_sigaction(2)). act is a kernel struct sigaction.
func sigaction(sig syscall.Signal, act *[64]byte) error {
	const maskBytes = 8
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(act)), 0, maskBytes, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

package proctree

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// ResetSignals makes sure that children start with every signal at its default, even if this process was started with
// some of them ignored, as by nohup or by a shell's background job. It is called once, by main, before the first
// child and before main registers handlers of its own.
//
// The process goes on ignoring those signals: they get a handler that drops them. A handler, unlike SIG_IGN, does not
// outlive exec. What the Go runtime handles itself needs nothing, and a blocked signal is unblocked by [Start].
func ResetSignals() error {
	ignored, err := ignoredSignals()
	if err != nil {
		return fmt.Errorf("reset signals: %w", err)
	}
	dropped := make(chan os.Signal, 1) // nobody receives, and the runtime doesn't wait for room
	for _, sig := range ignored {
		if sig >= 32 && sig <= 34 {
			// The runtime keeps its hands off these. All zero bytes are SIG_DFL in any layout of struct sigaction.
			var dfl [64]byte
			if err := sigaction(sig, &dfl); err != nil {
				return fmt.Errorf("reset signals: %w", os.NewSyscallError("rt_sigaction", err))
			}
			continue
		}
		signal.Notify(dropped, sig)
	}
	return nil
}

// ignoredSignals reads SigIgn from /proc/self/status: a hexadecimal mask, bit 0 for signal 1.
func ignoredSignals() ([]syscall.Signal, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return nil, err
	}
	_, rest, _ := bytes.Cut(status, []byte("\nSigIgn:"))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	mask, err := strconv.ParseUint(string(bytes.TrimSpace(line)), 16, 64)
	if err != nil {
		return nil, fmt.Errorf("ignored signals: %w", err)
	}
	var sigs []syscall.Signal
	for sig := syscall.Signal(1); sig <= 64; sig++ {
		if mask&(1<<(sig-1)) != 0 {
			sigs = append(sigs, sig)
		}
	}
	return sigs, nil
}

// SealDescriptors keeps descriptors that this process was started with, above standard error, from its children. It is
// called once, by main, before the first child. What Go opens itself is never inherited.
func SealDescriptors() error {
	return os.NewSyscallError("close_range", unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC))
}

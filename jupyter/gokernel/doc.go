// Package gokernel is a Jupyter kernel for Go: it interprets cells with yaegi and speaks the Jupyter messaging protocol
// 5.3 over ZeroMQ. Nothing has to be installed for it, no Go either.
//
// A cell is a list of declarations, statements and expressions, as if typed one after another; what it declares lives
// on, and the value of its last line is shown if that is an expression. A cell that begins with a package clause or
// declares func main is a program of its own, with a fresh state.
//
//	err := gokernel.Serve(ctx, "/run/kernel-1.json") // the connection file that a Jupyter Server wrote
//
// # Invariants
//
//   - Cells run one at a time, in order of arrival. Requests on the control channel don't wait for them.
//   - What a cell has written to os.Stdout and os.Stderr is sent before the cell's reply and its idle.
//   - An interrupt ends the cell that runs and nothing that comes later. What Go itself can't interrupt, as a lock
//     that is never given back, isn't: the kernel has to be restarted then.
//   - Nothing is dropped: a subscriber that doesn't read makes the cell wait in its next write.
//
// # Goroutines
//
// One for each connection and one more for each connected subscriber; two that read the output; one that takes
// interrupts. All end when Serve returns, but what a cell has left running doesn't: the process has to end then.
package gokernel

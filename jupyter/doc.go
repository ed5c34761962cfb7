// Package jupyter runs code cells in Jupyter kernels: a client of a Jupyter Server (REST and the kernel WebSocket,
// messaging protocol 5.3) and a server of our own.
//
// [Managed] is the server that we start; [Client] speaks to a server, ours or another's; [Server] opens kernels on
// one; a [Kernel] runs cells and reports to the hooks.
//
//	managed := jupyter.NewManaged(jupyter.ManagedConfig{Prefix: "/opt/celld", RunDir: dir, Env: os.Environ()})
//	defer managed.Close(ctx)
//	server := jupyter.NewServer(jupyter.ServerConfig{Managed: managed, Aliases: map[string]string{"py": "python"}})
//	defer server.Close(ctx)
//	k, err := server.Open(ctx, jupyter.OpenRequest{ID: id, Language: "python", Cwd: "/workspace"})
//	…
//	err = k.Execute(ctx, jupyter.ExecuteRequest{Code: "1+1"}, h)
//
// # Invariants
//
//   - A cell is over when its own reply and its own idle have both been seen, in whatever order, and its hooks aren't
//     called after that. No timer lies on that way.
//   - Messages are matched by their parent's id. What belongs to nobody here never ends or pollutes a cell.
//   - A cell ends exactly once: by the kernel, or by the loss of its connection, for which the first reason counts.
//   - One goroutine reads a kernel's socket and calls the hooks, which may block; what must not wait for them
//     (liveness, interrupt, restart) goes by REST.
//   - Whoever runs a cell or changes the connection holds the kernel's turn. An interrupt holds it until the server
//     has answered, so that it can't hit the next cell.
//   - A connection is never repaired, only replaced; on a server that isn't ours its socket is replaced while a cell
//     runs, for the same session. A fresh kernel process is told of once, by the next cell.
//
// # Locks
//
// Server.mu, pool.mu, Managed.mu, Kernel.mu and conn.mu guard maps and pointers, are held over no I/O and no hook, and none
// is taken while another is held. Kernel.turn (a channel) is the only thing that is held over I/O.
package jupyter

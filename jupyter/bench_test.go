package jupyter

import (
	"context"
	"sync"
	"testing"

	"github.com/gorilla/websocket"
)

// bare is the smallest honest client of a kernel: it sends a cell, reads until reply and idle, and keeps nothing.
func bare(b *testing.B, ws socket, code string) (bytes int) {
	b.Helper()
	head := requestHeader{ID: newID(), Session: "bare", Type: "execute_request", Version: protocolVersion}
	frame, err := request{channel: shellChannel, header: head, content: executeContent{Code: code, StoreHistory: true, Expressions: emptyObject}}.encode(true)
	if err != nil {
		b.Fatal(err)
	}
	if err := ws.WriteMessage(websocket.BinaryMessage, frame); err != nil {
		b.Fatal(err)
	}
	for left := 2; left > 0; {
		_, frame, err := ws.ReadMessage()
		if err != nil {
			b.Fatal(err)
		}
		m, err := parseV1(frame)
		if err != nil {
			b.Fatal(err)
		}
		if m.parent != head.ID {
			continue
		}
		switch {
		case m.header.Type == "execute_reply":
			left--
		case m.header.Type == "status" && string(m.content) == `{"execution_state": "idle"}`:
			left--
		case m.header.Type == "stream":
			bytes += len(m.content)
		}
	}
	return bytes
}

// BenchmarkCell compares a warm cell with the bare client's on the same server, in turns.
func BenchmarkCell(b *testing.B) {
	for name, code := range map[string]string{"1+1": "1+1", "10MB": "for i in range(1000): print('z'*9_999)"} {
		b.Run(name, func(b *testing.B) {
			k, other := open(b), open(b)
			client, err := shared.managed.Client(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			ws, err := client.dial(b.Context(), other.KernelID(), newID())
			if err != nil {
				b.Fatal(err)
			}
			defer ws.Close()
			var ours, floor samples
			for range 5 {
				bare(b, ws, code)
				if err := k.Execute(b.Context(), ExecuteRequest{Code: code}, nothing{}); err != nil {
					b.Fatal(err)
				}
			}
			for b.Loop() {
				ours.time(func() { err = k.Execute(b.Context(), ExecuteRequest{Code: code}, nothing{}) })
				if err != nil {
					b.Fatal(err)
				}
				floor.time(func() { bare(b, ws, code) })
			}
			report(b, ours, floor)
		})
	}
}

// BenchmarkTenKernels compares opening ten kernels at once with the bare calls for it.
func BenchmarkTenKernels(b *testing.B) {
	needPython(b)
	client, err := shared.managed.Client(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	var ours, floor samples
	ten := func(f func()) {
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(f)
		}
		wg.Wait()
	}
	for b.Loop() {
		kernels := make(chan *Kernel, 10)
		ours.time(func() {
			ten(func() {
				k, err := shared.server.Open(b.Context(), OpenRequest{ID: newID(), Language: "python", Cwd: "/"})
				if err != nil {
					b.Error(err)
				}
				kernels <- k
			})
		})
		for range 10 {
			if err := (<-kernels).Close(context.Background()); err != nil {
				b.Error(err)
			}
		}
		sessions := make(chan Session, 10)
		floor.time(func() {
			ten(func() {
				s, err := client.CreateSession(b.Context(), newID()+".ipynb", "bare", "python3")
				if err != nil {
					b.Error(err)
				}
				ws, err := client.dial(b.Context(), s.Kernel.ID, newID())
				if err != nil {
					b.Error(err)
				}
				ws.Close()
				sessions <- s
			})
		})
		for range 10 {
			if err := client.DeleteSession(b.Context(), (<-sessions).ID); err != nil {
				b.Error(err)
			}
		}
	}
	report(b, ours, floor)
}

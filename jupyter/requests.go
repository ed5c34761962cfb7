package jupyter

import (
	"context"
	"encoding/json"
	"fmt"
)

// Complete asks the kernel how code may go on at cursor, counted in Unicode characters from its start. The answer is
// the content of complete_reply (Jupyter messaging, "Completion"). A kernel answers between cells only.
func (k *Kernel) Complete(ctx context.Context, code string, cursor int) (json.RawMessage, error) {
	return k.ask(ctx, "complete_request", struct {
		Code   string `json:"code"`
		Cursor int    `json:"cursor_pos"`
	}{code, cursor})
}

// Inspect asks the kernel what is known of the name at cursor; detail is 0 or 1. The answer is the content of
// inspect_reply (Jupyter messaging, "Introspection").
func (k *Kernel) Inspect(ctx context.Context, code string, cursor, detail int) (json.RawMessage, error) {
	return k.ask(ctx, "inspect_request", struct {
		Code   string `json:"code"`
		Cursor int    `json:"cursor_pos"`
		Detail int    `json:"detail_level"`
	}{code, cursor, detail})
}

// IsComplete asks the kernel whether code can be run as it is. The answer is the content of is_complete_reply
// (Jupyter messaging, "Code completeness").
func (k *Kernel) IsComplete(ctx context.Context, code string) (json.RawMessage, error) {
	return k.ask(ctx, "is_complete_request", struct {
		Code string `json:"code"`
	}{code})
}

// ask sends a request that is no cell, on the connection there is or a new one.
func (k *Kernel) ask(ctx context.Context, kind string, content any) (json.RawMessage, error) {
	k.mu.Lock()
	c := k.conn
	k.mu.Unlock()
	if c == nil || c.isLost() {
		if err := k.take(ctx); err != nil {
			return nil, fmt.Errorf("%s: %w", kind, err)
		}
		var err error
		c, err = k.ready(ctx)
		k.release()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", kind, err)
		}
	}
	reply, err := c.ask(ctx, request{channel: shellChannel, header: c.header(kind), content: content})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", kind, err)
	}
	return reply, nil
}

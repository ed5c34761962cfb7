package backends

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/celld/celld/hooks"
	"github.com/celld/celld/jupyter"
	"github.com/celld/celld/shellrun"
)

// Kernels runs code cells in Jupyter kernels, one kernel a context.
type Kernels struct {
	Server    *jupyter.Server
	Remote    bool     // it isn't ours
	Languages []string // that the table gives to kernels; other kernelspecs are known by their own names
	Others    []string // languages of the table that run elsewhere
	Runner    *shellrun.Runner
	Envs      EnvFile           // read for each new context
	Install   map[string]string // by language: how to get a kernel for it

	mu   sync.Mutex
	open map[string]*jupyter.Kernel // by context
}

func (b *Kernels) kernel(id string) (*jupyter.Kernel, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if k := b.open[id]; k != nil {
		return k, nil
	}
	return nil, Refuse(NoContext, "no context %q", id)
}

// Open implements Stateful.
func (b *Kernels) Open(ctx context.Context, req OpenRequest) (string, error) {
	env, err := b.Envs.under(req.Env)
	if err != nil {
		return "", err
	}
	cwd := req.Cwd
	if !b.Remote || !filepath.IsAbs(cwd) || strings.ContainsRune(cwd, '$') { // a remote directory needn't be here
		at, err := b.Runner.Surroundings(cwd, env, nil)
		if err != nil {
			return "", shellRefusal(err)
		}
		cwd = at.Dir
	}
	k, err := b.Server.Open(ctx, jupyter.OpenRequest{
		ID: req.ID, Language: req.Language, Cwd: cwd, Env: env, Wish: b.Remote && req.Cwd == "",
	})
	if err != nil {
		return "", b.refusal(ctx, req.Language, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open == nil {
		b.open = map[string]*jupyter.Kernel{}
	}
	b.open[req.ID] = k
	if b.Remote && req.Cwd == "" {
		return "", nil // the workspace if that is there, which nobody told us
	}
	return k.Cwd(), nil
}

// Close implements Stateful.
func (b *Kernels) Close(ctx context.Context, id string) error {
	k, err := b.kernel(id)
	if err != nil {
		return err
	}
	b.mu.Lock()
	delete(b.open, id)
	b.mu.Unlock()
	return k.Close(ctx)
}

// Restart implements Restarter.
func (b *Kernels) Restart(ctx context.Context, id string) error {
	k, err := b.kernel(id)
	if err != nil {
		return err
	}
	if err := k.Restart(ctx); err != nil {
		return kernelRefusal(err)
	}
	return nil
}

// Prepare implements Backend.
func (b *Kernels) Prepare(_ context.Context, req Request) (*Run, error) {
	k, err := b.kernel(req.ContextID)
	if err != nil {
		return nil, err
	}
	do := func(ctx context.Context, h hooks.Hooks) error {
		return k.Execute(ctx, jupyter.ExecuteRequest{Code: req.Code, AllowStdin: req.AllowInput}, h)
	}
	input := func(ctx context.Context, value string) error {
		err := k.Input(ctx, value)
		if errors.Is(err, jupyter.ErrNoInput) {
			return Refuse(Conflict, "no cell waits for input")
		}
		return err
	}
	return &Run{Do: do, Handle: Handle{Input: input}}, nil
}

// Ask implements Assistant.
func (b *Kernels) Ask(ctx context.Context, id string, q Question) (reply json.RawMessage, err error) {
	k, err := b.kernel(id)
	if err != nil {
		return nil, err
	}
	switch q.Ask {
	case AskComplete:
		reply, err = k.Complete(ctx, q.Code, q.Cursor)
	case AskInspect:
		reply, err = k.Inspect(ctx, q.Code, q.Cursor, q.Detail)
	default:
		reply, err = k.IsComplete(ctx, q.Code)
	}
	if err != nil {
		return nil, kernelRefusal(err)
	}
	return reply, nil
}

// Kernel implements Assistant.
func (b *Kernels) Kernel(id string) (KernelInfo, error) {
	k, err := b.kernel(id)
	if err != nil {
		return KernelInfo{}, err
	}
	spec := k.Spec()
	return KernelInfo{Name: spec.Name, DisplayName: spec.DisplayName, Language: spec.Language}, nil
}

// Canonical implements Finder: a language of the table, else the kernelspec's name.
func (b *Kernels) Canonical(ctx context.Context, language string) (string, error) {
	spec, err := b.Server.Kernelspec(ctx, language)
	if err != nil {
		return "", b.refusal(ctx, language, err)
	}
	i := slices.IndexFunc(b.Languages, func(l string) bool {
		known, err := b.Server.Kernelspec(ctx, l)
		return err == nil && known.Name == spec.Name
	})
	if i >= 0 {
		return b.Languages[i], nil
	}
	return spec.Name, nil
}

// refusal is kernelRefusal for what asks for a kernel of a language: it lists what there is, and says how to get what there
// isn't.
func (b *Kernels) refusal(ctx context.Context, language string, err error) error {
	var none *jupyter.NoKernelspecError
	if !errors.As(err, &none) {
		return kernelRefusal(err)
	}
	message := fmt.Sprintf("nothing runs %q; there are: %s", language, strings.Join(b.names(ctx, none.Available), ", "))
	if how := b.Install[language]; how != "" {
		message += ". " + how
	}
	return &Error{Fault: Invalid, Message: message, Err: err}
}

// names are the languages that there are, each by the name that clients use. specs are the kernelspecs.
func (b *Kernels) names(ctx context.Context, specs []string) []string {
	names := slices.Clone(b.Others)
	seen := map[string]bool{}
	for _, language := range b.Languages {
		if spec, err := b.Server.Kernelspec(ctx, language); err == nil {
			seen[spec.Name] = true
			names = append(names, language)
		}
	}
	for _, spec := range specs {
		if !seen[spec] {
			names = append(names, spec)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// kernelRefusal makes a refusal of what the Jupyter client reports before a cell runs.
func kernelRefusal(err error) error {
	var none *jupyter.NoKernelspecError
	switch {
	case errors.As(err, &none):
		return &Error{Fault: Invalid, Message: none.Error(), Err: err}
	case errors.Is(err, jupyter.ErrPlace):
		return &Error{Fault: Invalid, Message: err.Error(), Err: err}
	case errors.Is(err, jupyter.ErrClosed):
		return &Error{Fault: NoContext, Message: "the context was deleted meanwhile", Err: err}
	}
	// The server can't be had, or the kernel can't be started: what is installed here is at fault.
	return &Error{Fault: Unavailable, Message: err.Error(), Err: err}
}

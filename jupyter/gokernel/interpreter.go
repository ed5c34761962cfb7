package gokernel

import (
	"context"
	"errors"
	"fmt"
	"go/parser"
	"go/scanner"
	"io"
	"maps"
	"os"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"
	_ "unsafe" // for go:linkname

	"github.com/traefik/yaegi/interp"
	"github.com/traefik/yaegi/stdlib"
	ysyscall "github.com/traefik/yaegi/stdlib/syscall"
	"github.com/traefik/yaegi/stdlib/unrestricted"
	yunsafe "github.com/traefik/yaegi/stdlib/unsafe"
)

// stopInterpreter ends what the interpreter runs. The exported way, a context, gives up on the running code instead
// of waiting for its end: it would go on beside the next cell.
//
//go:linkname stopInterpreter github.com/traefik/yaegi/interp.(*Interpreter).stop
func stopInterpreter(*interp.Interpreter)

// failure is how a cell failed, as Jupyter reports it.
type failure struct {
	Name      string   `json:"ename"`
	Value     string   `json:"evalue"`
	Traceback []string `json:"traceback"`
}

var errInterrupted = errors.New("interrupted")

// exit is what a cell's os.Exit panics with.
type exit int

// interpreter runs cells. run is called by one goroutine, interrupt by any.
type interpreter struct {
	stdin          io.Reader
	stdout, stderr *os.File
	cells          *interp.Interpreter // what cells that aren't programs share
	declared       map[string]string   // texts of the types and methods they declared, by name
	imported       map[string]bool     // imports they made: name and path

	mu          sync.Mutex // guards what follows
	current     *interp.Interpreter
	armed       bool // current can be stopped
	interrupted bool // the cell that runs
	wake        chan struct{}
}

func newInterpreter(stdin io.Reader, stdout, stderr *os.File) (*interpreter, error) {
	e := &interpreter{stdin: stdin, stdout: stdout, stderr: stderr, wake: make(chan struct{})}
	e.declared, e.imported = map[string]string{}, map[string]bool{}
	var err error
	e.cells, err = e.fresh()
	return e, err
}

// fresh makes an interpreter with the standard library.
func (e *interpreter) fresh() (*interp.Interpreter, error) {
	i := interp.New(interp.Options{Stdin: e.stdin, Stdout: e.stdout, Stderr: e.stderr, Unrestricted: true})
	own := interp.Exports{
		"os/os":     {"Exit": reflect.ValueOf(func(code int) { panic(exit(code)) })},
		"time/time": {"Sleep": reflect.ValueOf(e.sleep)},
	}
	for _, symbols := range []interp.Exports{stdlib.Symbols, ysyscall.Symbols, yunsafe.Symbols, unrestricted.Symbols, own} {
		if err := i.Use(symbols); err != nil {
			return nil, fmt.Errorf("load the standard library: %w", err)
		}
	}
	_, err := i.Eval("func " + value + "(x interface{}) interface{} { return x }")
	return i, err
}

// sleep is time.Sleep for cells: an interrupt ends it.
func (e *interpreter) sleep(d time.Duration) {
	e.mu.Lock()
	wake := e.wake
	e.mu.Unlock()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-wake:
	}
}

// interrupt ends the cell that runs. It does nothing between cells.
func (e *interpreter) interrupt() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.current == nil {
		return
	}
	if !e.interrupted {
		close(e.wake)
	}
	e.interrupted = true
	e.stop()
}

// stop tells the current interpreter to stop. A second call repeats what the first may have missed. The caller holds mu.
func (e *interpreter) stop() {
	if !e.armed {
		return
	}
	defer func() { _ = recover() }() // the second call closes a channel that is closed
	stopInterpreter(e.current)
}

// wakes returns a channel that is closed when the cell that runs is interrupted.
func (e *interpreter) wakes() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.wake
}

// run interprets a cell and returns the value of its last line as text, empty if it has none to show.
func (e *interpreter) run(code string) (shown string, failed *failure) {
	parts, program := split(code)
	if program {
		return "", e.runProgram(code, parts)
	}
	e.begin(e.cells)
	defer e.end()
	for i, p := range parts {
		text := code[p.from:p.to]
		var err error
		switch {
		case p.kind == importing:
			err = e.runImports(p, text)
		case p.kind == declaration:
			err = e.runDeclarations(p, text)
		case i == len(parts)-1:
			shown, err = e.runLast(p, text)
		default:
			_, err = e.evaluate(e.cells, p.place(text))
		}
		if err != nil {
			return "", failureOf(err)
		}
	}
	return shown, nil
}

// runProgram runs a cell that is a program of its own.
func (e *interpreter) runProgram(code string, parts []part) *failure {
	on, err := e.fresh()
	if err != nil {
		return failureOf(err)
	}
	if !strings.HasPrefix(code[parts[0].from:], "package") {
		code = "package main;" + code
	}
	e.begin(on)
	defer e.end()
	if _, err := e.evaluate(on, code); err != nil {
		return failureOf(err)
	}
	return nil
}

// runImports imports what isn't imported yet: a second time would be an error.
func (e *interpreter) runImports(p part, text string) error {
	specs, err := importsIn(text)
	if err != nil {
		_, err = e.evaluate(e.cells, p.place(text)) // says what is wrong
		return err
	}
	for _, spec := range specs {
		if e.imported[spec] {
			continue
		}
		if _, err := e.evaluate(e.cells, p.place("import "+spec)); err != nil {
			return err
		}
		e.imported[spec] = true
	}
	return nil
}

// runDeclarations refuses to change a type or a method: the interpreter would keep the old one and say nothing.
func (e *interpreter) runDeclarations(p part, text string) error {
	found := lasting(text)
	for name, text := range found {
		if old, ok := e.declared[name]; ok && old != text {
			return fmt.Errorf("%d:%d: %s was declared otherwise before: restart the context to change it", p.line, p.col, name)
		}
	}
	_, err := e.evaluate(e.cells, p.place(text))
	if err == nil {
		maps.Copy(e.declared, found)
	}
	return err
}

// value is the name of a function in all interpreters through which the last expression of a cell goes: what has no
// value, or two, can't.
const value = "celldValue_"

// runLast runs the last statement of a cell and returns the text of its value.
func (e *interpreter) runLast(p part, text string) (string, error) {
	x, err := parser.ParseExpr(text)
	if err != nil || prints(x) {
		_, err := e.evaluate(e.cells, p.place(text))
		return "", err
	}
	expression := text[x.Pos()-1 : x.End()-1]
	program, err := e.compile(e.cells, value+"("+p.place(expression)+")")
	if err != nil {
		_, err := e.evaluate(e.cells, p.place(text))
		return "", err
	}
	v, err := e.execute(e.cells, program)
	if err != nil || !v.IsValid() || !v.CanInterface() {
		return "", err
	}
	return format(v.Interface()), nil
}

// place gives text its place in the cell, for messages.
func (p part) place(text string) string {
	return fmt.Sprintf("\n//line :%d:%d\n%s", p.line, p.col, text)
}

func (e *interpreter) begin(on *interp.Interpreter) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.current, e.armed, e.interrupted, e.wake = on, false, false, make(chan struct{})
}

func (e *interpreter) end() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.current, e.armed = nil, false
}

// execution is the context of a part that runs. The interpreter asks for Done once it can be stopped; it is never
// done, since the interpreter wouldn't wait for the code then.
type execution struct {
	context.Context
	arm func()
}

// Done implements context.Context.
func (x execution) Done() <-chan struct{} {
	x.arm()
	return nil
}

// evaluate runs text to its end.
func (e *interpreter) evaluate(on *interp.Interpreter, text string) (reflect.Value, error) {
	program, err := e.compile(on, text)
	if err != nil {
		return reflect.Value{}, err
	}
	return e.execute(on, program)
}

func (e *interpreter) compile(on *interp.Interpreter, text string) (program *interp.Program, err error) {
	defer func() {
		if r := recover(); r != nil { // the interpreter's compiler isn't proof against everything
			err = fmt.Errorf("the interpreter can't take this: %v", r)
		}
	}()
	return on.Compile(text)
}

func (e *interpreter) execute(on *interp.Interpreter, program *interp.Program) (reflect.Value, error) {
	e.mu.Lock()
	stopped := e.interrupted
	e.mu.Unlock()
	if stopped {
		return reflect.Value{}, errInterrupted
	}
	v, err := on.ExecuteWithContext(execution{context.Background(), e.ready}, program)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.armed = false
	if e.interrupted {
		return v, errInterrupted
	}
	return v, err
}

// ready says that what runs can be stopped.
func (e *interpreter) ready() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.armed = true
	if e.interrupted {
		e.stop()
	}
}

// failureOf tells how a cell failed; nil if it ended itself with status 0.
func failureOf(err error) *failure {
	var panicked interp.Panic
	var syntax scanner.ErrorList
	switch {
	case errors.Is(err, errInterrupted):
		return &failure{Name: "KeyboardInterrupt", Value: "the cell was interrupted", Traceback: []string{"KeyboardInterrupt: the cell was interrupted"}}
	case errors.As(err, &panicked):
		return panickedWith(panicked)
	case errors.As(err, &syntax):
		var lines []string
		for _, one := range syntax {
			lines = append(lines, strings.TrimPrefix(one.Error(), interp.DefaultSourceName+":"))
		}
		return compileError(lines...)
	}
	return compileError(err.Error())
}

func compileError(lines ...string) *failure {
	return &failure{Name: "CompileError", Value: lines[0], Traceback: append([]string{"CompileError: " + lines[0]}, lines[1:]...)}
}

func panickedWith(p interp.Panic) *failure {
	value := p.Value
	if v, ok := value.(reflect.Value); ok && v.IsValid() && v.CanInterface() {
		value = v.Interface()
	}
	if code, ok := value.(exit); ok {
		if code == 0 {
			return nil
		}
		text := "exit status " + strconv.Itoa(int(code))
		return &failure{Name: "ExitError", Value: text, Traceback: []string{text}}
	}
	text := fmt.Sprint(value)
	if err, ok := value.(error); ok {
		text = err.Error()
		var fault runtime.Error
		if errors.As(err, &fault) {
			text = fault.Error()
		}
	}
	return &failure{Name: "Panic", Value: text, Traceback: []string{"panic: " + text}}
}

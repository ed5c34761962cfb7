package gokernel

import (
	"go/parser"
	"go/scanner"
	"go/token"
	"strings"
)

// part is a piece of a cell that is interpreted as one.
type part struct {
	kind partKind
	from int // bytes into the cell
	to   int
	line int // of its begin, from 1
	col  int
}

type partKind int

const (
	statement partKind = iota
	declaration
	importing
)

// split cuts a cell where its parts of the outermost level end. Neighbours of one kind become one part, but for the
// last of a cell's statements, whose value may be shown. program says that the cell has a package clause or a
// func main. Code that can't be scanned comes as one part: the interpreter says what is wrong with it.
func split(code string) (parts []part, program bool) {
	var (
		fset  = token.NewFileSet()
		file  = fset.AddFile("", fset.Base(), len(code))
		s     scanner.Scanner
		wrong bool
		now   []lexeme
		depth int
	)
	s.Init(file, []byte(code), func(token.Position, string) { wrong = true }, 0)
	flush := func(end int) {
		if len(now) == 0 {
			return
		}
		position := file.Position(file.Pos(now[0].at))
		p := part{kind: kindOf(now), from: now[0].at, to: end, line: position.Line, col: position.Column}
		program = program || now[0].tok == token.PACKAGE || isMain(now)
		parts = append(parts, p)
		now = nil
	}
	for {
		pos, tok, lit := s.Scan()
		at := file.Offset(pos)
		switch tok {
		case token.EOF:
			flush(len(code))
			if wrong {
				return []part{{from: 0, to: len(code), line: 1, col: 1}}, program
			}
			return merge(parts), program
		case token.LPAREN, token.LBRACE, token.LBRACK:
			depth++
		case token.RPAREN, token.RBRACE, token.RBRACK:
			depth--
		case token.SEMICOLON:
			if depth <= 0 && !(hasHeader(now) && !isWhole(code[now[0].at:at])) {
				flush(at)
				continue
			}
		}
		now = append(now, lexeme{at, tok, lit})
	}
}

type lexeme struct {
	at  int
	tok token.Token
	lit string
}

// hasHeader says whether a statement is of those that may have semicolons before their block.
func hasHeader(tokens []lexeme) bool {
	for len(tokens) > 2 && tokens[0].tok == token.IDENT && tokens[1].tok == token.COLON { // labels
		tokens = tokens[2:]
	}
	return len(tokens) > 0 && (tokens[0].tok == token.FOR || tokens[0].tok == token.IF || tokens[0].tok == token.SWITCH)
}

// isWhole says whether text is one statement or several, to their end.
func isWhole(text string) bool {
	_, err := parser.ParseFile(token.NewFileSet(), "", "package p; func _() {\n"+text+"\n}", parser.SkipObjectResolution)
	return err == nil
}

func kindOf(tokens []lexeme) partKind {
	switch tokens[0].tok {
	case token.IMPORT:
		return importing
	case token.TYPE, token.CONST, token.VAR:
		return declaration
	case token.FUNC:
		if funcName(tokens) != "" {
			return declaration
		}
	}
	return statement
}

// funcName returns the name that a func declares, empty for a function literal.
func funcName(tokens []lexeme) string {
	rest := tokens[1:]
	if len(rest) > 0 && rest[0].tok == token.LPAREN { // a receiver, or a literal's parameters
		depth := 0
		for i, t := range rest {
			if t.tok == token.LPAREN {
				depth++
			} else if t.tok == token.RPAREN {
				if depth--; depth == 0 {
					rest = rest[i+1:]
					break
				}
			}
		}
		if len(rest) < 2 || rest[1].tok != token.LPAREN { // func(a int) int {
			return ""
		}
	}
	if len(rest) > 0 && rest[0].tok == token.IDENT {
		return rest[0].lit
	}
	return ""
}

func isMain(tokens []lexeme) bool {
	return len(tokens) > 2 && tokens[0].tok == token.FUNC && tokens[1].tok == token.IDENT && tokens[1].lit == "main"
}

func merge(parts []part) []part {
	var merged []part
	for i, p := range parts {
		last := len(merged) - 1
		alone := p.kind == statement && i == len(parts)-1
		if last >= 0 && merged[last].kind == p.kind && !alone {
			merged[last].to = p.to
			continue
		}
		merged = append(merged, p)
	}
	return merged
}

// isComplete says whether code can be run as it is: complete, incomplete, or invalid (Jupyter messaging, "Code
// completeness").
func isComplete(code string) string {
	var stack []token.Token
	fset := token.NewFileSet()
	file := fset.AddFile("", fset.Base(), len(code))
	var s scanner.Scanner
	state, last := "complete", token.SEMICOLON
	s.Init(file, []byte(code), func(_ token.Position, msg string) {
		state = "invalid"
		if strings.Contains(msg, "raw string literal not terminated") || strings.Contains(msg, "comment not terminated") {
			state = "incomplete"
		}
	}, 0)
	opens := map[token.Token]token.Token{token.RPAREN: token.LPAREN, token.RBRACE: token.LBRACE, token.RBRACK: token.LBRACK}
	for {
		_, tok, _ := s.Scan()
		switch tok {
		case token.EOF:
			if state == "complete" && (len(stack) > 0 || last != token.SEMICOLON) {
				return "incomplete"
			}
			return state
		case token.LPAREN, token.LBRACE, token.LBRACK:
			stack = append(stack, tok)
		case token.RPAREN, token.RBRACE, token.RBRACK:
			if len(stack) == 0 || stack[len(stack)-1] != opens[tok] {
				return "invalid"
			}
			stack = stack[:len(stack)-1]
		}
		last = tok
	}
}

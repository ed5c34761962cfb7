package main

import (
	"context"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/celld/celld/internal/proctree"
	"github.com/celld/celld/jupyter"
	"github.com/celld/celld/openapi"
)

// languagesHere tells of each language what runs it, or why nothing does and how to get it. specs are all kernels there
// are, or down why they can't be had; those of other languages are told of by their own names.
func (r *runners) languagesHere(ctx context.Context, specs map[string]jupyter.Kernelspec, down error) []openapi.LanguageInfo {
	var all []openapi.LanguageInfo
	seen := map[string]bool{}
	for _, language := range r.languages {
		l := openapi.LanguageInfo{Name: language}
		spec, err := jupyter.Kernelspec{}, down
		if down == nil { // else each would wait as long again
			spec, err = r.kernels.Kernelspec(ctx, language)
		}
		if err != nil {
			reason, how := err.Error(), install[language]
			l.Reason, l.Hint = &reason, &how
		} else {
			seen[spec.Name] = true
			l = kernelInfo(language, spec)
		}
		all = append(all, l)
	}
	if !slices.Contains(r.languages, bashLanguage) {
		all = append(all, r.bashInfo())
		seen[bashLanguage] = true // a kernelspec of that name is not asked
	}
	for i := range all {
		for _, alias := range slices.Sorted(maps.Keys(aliases)) {
			if aliases[alias] == all[i].Name {
				all[i].Aliases = append(all[i].Aliases, alias)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(specs)) {
		if !seen[name] {
			all = append(all, kernelInfo(name, specs[name]))
		}
	}
	return all
}

func kernelInfo(language string, spec jupyter.Kernelspec) openapi.LanguageInfo {
	l := openapi.LanguageInfo{Name: language, Available: true, Kernel: &spec.Name}
	if spec.Kernel != "" {
		l.KernelVersion = &spec.Kernel
	}
	if spec.Version != "" {
		l.Version = &spec.Version
	}
	return l
}

// bashInfo tells of bash as celld runs it, in sessions of its own.
func (r *runners) bashInfo() openapi.LanguageInfo {
	l := openapi.LanguageInfo{Name: bashLanguage, Available: r.bash != ""}
	if !l.Available {
		reason, how := "there is no bash on PATH", "images/setup-system.sh installs it"
		l.Reason, l.Hint = &reason, &how
		return l
	}
	kernel := "celld's own session"
	l.Kernel = &kernel
	if v := r.bashVersion(); v != "" {
		l.Version = &v
	}
	return l
}

// bashVersion asks bash once; empty if it doesn't say.
func (r *runners) bashVersion() string {
	r.askBash.Do(func() {
		read, write, err := os.Pipe()
		if err != nil {
			return
		}
		defer read.Close()
		null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		if err != nil {
			write.Close()
			return
		}
		defer null.Close()
		tree, err := proctree.Start(proctree.Spec{
			Path: r.bash, Argv: []string{"bash", "--norc", "--noprofile", "-c", `printf %s "${BASH_VERSION%%[^0-9.]*}"`}, Dir: "/",
			Files: []*os.File{null, write, null},
		})
		write.Close()
		if err != nil {
			return
		}
		text, _ := io.ReadAll(io.LimitReader(read, 100))
		<-tree.Done()
		r.bashSays = string(text)
	})
	return r.bashSays
}

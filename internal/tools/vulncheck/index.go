package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The form of the database is described at go.dev/doc/security/vuln/database: the entries under ID, and an index
// of the modules they are about.

// entry is what the index needs of an entry in OSV form.
type entry struct {
	ID        string `json:"id"`
	Modified  string `json:"modified"`
	Withdrawn string `json:"withdrawn"`
	Affected  []struct {
		Package struct {
			Name string `json:"name"`
		} `json:"package"`
	} `json:"affected"`
}

type moduleIndex struct {
	Path  string        `json:"path"`
	Vulns []moduleVulns `json:"vulns"`
}

type moduleVulns struct {
	ID       string `json:"id"`
	Modified string `json:"modified"`
}

// index makes the database in dir from the entries in src.
func index(src, dir string) error {
	files, err := filepath.Glob(filepath.Join(src, "GO-*.json"))
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return fmt.Errorf("no entries in %s", src)
	}
	for _, sub := range []string{"ID", "index"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			return err
		}
	}
	modules, latest := map[string]*moduleIndex{}, ""
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var e entry
		if err := json.Unmarshal(text, &e); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		latest = max(latest, e.Modified) // RFC 3339 in UTC: the order of the texts is that of the times
		if e.Withdrawn == "" {
			e.addTo(modules)
		}
		if err := os.WriteFile(filepath.Join(dir, "ID", filepath.Base(file)), text, 0o644); err != nil {
			return err
		}
	}
	list := make([]*moduleIndex, 0, len(modules))
	for _, m := range modules {
		list = append(list, m)
	}
	slices.SortFunc(list, func(a, b *moduleIndex) int { return strings.Compare(a.Path, b.Path) })
	if err := writeJSON(filepath.Join(dir, "index", "modules.json"), list); err != nil {
		return err
	}
	return writeJSON(filepath.Join(dir, "index", "db.json"), map[string]string{"modified": latest})
}

// addTo adds the entry to each module it is about. No Fixed is written: govulncheck then reads the entry itself,
// which says more.
func (e entry) addTo(modules map[string]*moduleIndex) {
	for _, a := range e.Affected {
		m := modules[a.Package.Name]
		if m == nil {
			m = &moduleIndex{Path: a.Package.Name}
			modules[m.Path] = m
		}
		if !slices.ContainsFunc(m.Vulns, func(v moduleVulns) bool { return v.ID == e.ID }) {
			m.Vulns = append(m.Vulns, moduleVulns{ID: e.ID, Modified: e.Modified})
		}
	}
}

func writeJSON(file string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o644)
}

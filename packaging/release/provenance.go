package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

const (
	repository = "https://github.com/imagepin/imagepin"
	// localBuilder is the builder of a release that is not built by CI.
	localBuilder = repository + "/blob/main/RELEASES.md#local-build"
	buildType    = repository + "/blob/main/RELEASES.md#how-to-make-a-release"
)

// The parts of the in-toto statement v1 (https://in-toto.io/Statement/v1) and of the SLSA provenance v1
// (https://slsa.dev/spec/v1.0/provenance) that are used.
type (
	statement struct {
		Type          string     `json:"_type"`
		Subject       []resource `json:"subject"`
		PredicateType string     `json:"predicateType"`
		Predicate     predicate  `json:"predicate"`
	}
	resource struct {
		Name   string            `json:"name,omitempty"`
		URI    string            `json:"uri,omitempty"`
		Digest map[string]string `json:"digest,omitempty"`
	}
	predicate struct {
		Definition definition `json:"buildDefinition"`
		Run        run        `json:"runDetails"`
	}
	definition struct {
		BuildType    string            `json:"buildType"`
		Parameters   map[string]string `json:"externalParameters"`
		Dependencies []resource        `json:"resolvedDependencies"`
	}
	run struct {
		Builder builder `json:"builder"`
	}
	builder struct {
		ID string `json:"id"`
	}
)

// source is what the files are built from.
type source struct {
	version, commit, goVersion string
}

// provenance returns an unsigned statement of how the files were built. It has no time, so that it is reproducible. The
// modules are not listed: the commit has their hashes, and the bills of materials have their versions.
func provenance(from source, by string, files []artifact) ([]byte, error) {
	s := statement{
		Type: "https://in-toto.io/Statement/v1", PredicateType: "https://slsa.dev/provenance/v1",
		Predicate: predicate{
			Definition: definition{
				BuildType: buildType, Parameters: map[string]string{"version": from.version},
				Dependencies: []resource{
					{URI: fmt.Sprintf("git+%s@refs/tags/%s", repository, from.version), Digest: map[string]string{"gitCommit": from.commit}},
					{URI: "pkg:golang/stdlib@" + strings.TrimPrefix(from.goVersion, "go")},
				},
			},
			Run: run{builder{by}},
		},
	}
	for _, f := range files {
		s.Subject = append(s.Subject, resource{Name: f.name, Digest: map[string]string{"sha256": f.sha256}})
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("", " ")
	enc.SetEscapeHTML(false)
	err := enc.Encode(s)
	return b.Bytes(), err
}

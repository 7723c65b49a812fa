package policy

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// Glob matches normalized references. "*" matches any text without a slash, "**" any text, and "?" one character other
// than a slash. All other characters match themselves.
type Glob struct {
	re *regexp.Regexp
}

// maxGlob is the maximum length of a glob in bytes, that of a reference. To compile a longer one takes seconds and much memory.
const maxGlob = 1024

// ParseGlob compiles a glob. It returns an error for a glob that cannot match any normalized reference, or is longer than one.
// References begin with their registry, as in docker.io/library/busybox:1.
func ParseGlob(pattern string) (*Glob, error) {
	if pattern == "" {
		return nil, errors.New("is empty")
	}
	if len(pattern) > maxGlob {
		return nil, fmt.Errorf("has %d bytes, and a glob has at most %d", len(pattern), maxGlob)
	}
	first, rest, slash := strings.Cut(pattern, "/")
	wild := strings.ContainsAny(first, "*?")
	switch {
	case !slash && !strings.Contains(pattern, "**"):
		return nil, fmt.Errorf("can never match: a reference begins with its registry, as in %q", "docker.io/library/"+pattern)
	case slash && !wild && !strings.ContainsAny(first, ".:") && first != "localhost":
		return nil, fmt.Errorf("can never match: %q is not a registry; write %q", first, "docker.io/"+pattern)
	case slash && rest == "":
		return nil, errors.New("can never match: it has no repository")
	case strings.ContainsAny(pattern, " \t\n"):
		return nil, errors.New("can never match: references have no spaces")
	}
	if last := pattern[strings.LastIndex(pattern, "/")+1:]; !strings.ContainsAny(last, ":@*") {
		return nil, fmt.Errorf("can never match: a reference has a tag or a digest; write %q", pattern+":*")
	}
	if repository, _, _ := strings.Cut(rest, ":"); repository != strings.ToLower(repository) {
		return nil, errors.New("can never match: repository names are lowercase")
	}
	var b strings.Builder
	b.WriteString("^")
	for i := 0; i < len(pattern); i++ {
		switch {
		case strings.HasPrefix(pattern[i:], "**"):
			b.WriteString(".*")
			i++
		case pattern[i] == '*':
			b.WriteString("[^/]*")
		case pattern[i] == '?':
			b.WriteString("[^/]")
		default:
			b.WriteString(regexp.QuoteMeta(pattern[i : i+1]))
		}
	}
	b.WriteString("$")
	re, err := regexp.Compile(b.String())
	if err != nil {
		return nil, err
	}
	return &Glob{re: re}, nil
}

// Match reports whether a normalized reference matches.
func (g *Glob) Match(ref string) bool { return g.re.MatchString(ref) }

package layerfiles

import (
	"fmt"
	"strconv"
	"strings"
)

// maxFindings is the number of findings of a result.
const maxFindings = 5

// Options has the options of a comparison. The zero value compares quickly.
type Options struct {
	// Deep also reads the content of all files. Otherwise only that of files is read that are suspicious: a file with a hole,
	// which no layer makes, and one of zeros.
	Deep bool
	// Read is called with the number of bytes that are read next, and may wait. Its error ends the comparison. It may be nil.
	Read func(bytes int64) error
	// Extra reports whether the snapshotter itself makes a file that no layer has. It may be nil.
	Extra func(path string) bool
}

// State is what is known about the files of a snapshot.
type State int

const (
	// Unverified: nothing is known, because there is nothing to compare with, or the files cannot be read.
	Unverified State = iota
	// Intact: all files are as the layers say.
	Intact
	// Damaged: at least one file is not.
	Damaged
)

// Result is the result of a comparison.
type Result struct {
	State State
	// Findings are the first differences of a damaged snapshot, Total is the number of all.
	Findings []Finding
	Total    int
	// Reason says why a snapshot is unverified.
	Reason string
}

// Finding is a file that is not as its layer says.
type Finding struct {
	// Path is absolute in the image. It may have any bytes.
	Path string
	// Problem continues the path.
	Problem string
}

// String returns the finding with a quoted path.
func (f Finding) String() string { return quote(f.Path) + " " + f.Problem }

// Summary describes the differences of a damaged snapshot in one line.
func (r Result) Summary() string {
	all := make([]string, 0, len(r.Findings)+1)
	for _, f := range r.Findings {
		all = append(all, f.String())
	}
	if more := r.Total - len(r.Findings); more > 0 {
		all = append(all, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(all, "; ")
}

func (r *Result) add(path, problem string) {
	r.State = Damaged
	r.Total++
	if len(r.Findings) < maxFindings {
		r.Findings = append(r.Findings, Finding{Path: path, Problem: problem})
	}
}

// maxQuoted is how many bytes of a name are shown.
const maxQuoted = 128

// quote returns a name as it is shown, in ASCII.
func quote(name string) string {
	if len(name) > maxQuoted {
		return strconv.QuoteToASCII(name[:maxQuoted]) + "..."
	}
	return strconv.QuoteToASCII(name)
}

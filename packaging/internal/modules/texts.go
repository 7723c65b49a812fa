package modules

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
)

var rule = strings.Repeat("-", 80)

// Sorted returns the modules of licenses, sorted by path.
func Sorted(licenses map[Module]License) []Module {
	return slices.SortedFunc(maps.Keys(licenses), func(x, y Module) int {
		return strings.Compare(x.Path+"@"+x.Version, y.Path+"@"+y.Version)
	})
}

// Texts returns all licenses and notices that must accompany a binary with the
// modules. A text that several modules share appears once.
func Texts(licenses map[Module]License) []byte {
	users := make(map[string][]string)
	var texts []string
	for _, m := range Sorted(licenses) {
		l := licenses[m]
		for _, file := range slices.Sorted(maps.Keys(l.Files)) {
			text := strings.TrimSpace(l.Files[file])
			if users[text] == nil {
				texts = append(texts, text)
			}
			users[text] = append(users[text], fmt.Sprintf("%s %s (%s)", m.Path, m.Version, file))
		}
	}
	var out bytes.Buffer
	for _, text := range texts {
		fmt.Fprintf(&out, "%s\n%s\n%s\n\n%s\n\n", rule, strings.Join(users[text], "\n"), rule, text)
	}
	return out.Bytes()
}

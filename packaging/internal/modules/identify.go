package modules

import (
	"regexp"
	"slices"
	"strings"
)

// known are the phrases that identify a license, by SPDX identifier. A text must
// have all phrases in has and none in not.
var known = []struct {
	id       string
	has, not []string
}{
	{id: "Apache-2.0", has: []string{"apache license version 2.0", "unless required by applicable law or agreed to in writing"}},
	{id: "MPL-2.0", has: []string{"mozilla public license version 2.0", "1. definitions"}},
	{id: "MIT", has: []string{"permission is hereby granted, free of charge, to any person obtaining a copy", "the above copyright notice and this permission notice shall be included"}},
	{id: "ISC", has: []string{"permission to use, copy, modify, and", "distribute this software for any purpose with or without fee is hereby granted"}},
	{id: "BSD-3-Clause", has: []string{"redistributions of source code must retain", "redistributions in binary form must reproduce", "may be used to endorse or promote products"}},
	{id: "BSD-2-Clause", has: []string{"redistributions of source code must retain", "redistributions in binary form must reproduce"}, not: []string{"may be used to endorse or promote products", "all advertising materials"}},
	{id: "GPL", has: []string{"gnu general public license"}},
	{id: "LGPL", has: []string{"gnu lesser general public license"}, not: []string{"mozilla public license"}},
	{id: "AGPL", has: []string{"gnu affero general public license"}, not: []string{"mozilla public license"}},
}

var blank = regexp.MustCompile(`[\s*#/"“”,;]+`)

// Identify returns the sorted SPDX identifiers of the known licenses in a text.
// A text that mentions a GNU license counts as that license. The exception is
// Mozilla's license, which mentions them for compatibility.
func Identify(text string) []string {
	plain := normalize(text)
	var ids []string
	for _, k := range known {
		if k.id == "GPL" && strings.Contains(plain, normalize("mozilla public license")) {
			continue
		}
		has := func(phrase string) bool { return strings.Contains(plain, normalize(phrase)) }
		if !slices.ContainsFunc(k.has, func(p string) bool { return !has(p) }) && !slices.ContainsFunc(k.not, has) {
			ids = append(ids, k.id)
		}
	}
	slices.Sort(ids)
	return ids
}

func normalize(s string) string { return blank.ReplaceAllString(strings.ToLower(s), " ") }

package modules

import (
	"slices"
	"testing"
)

func TestIdentify(t *testing.T) {
	const bsd2 = `Redistributions of source code must retain the above copyright notice.
		Redistributions in binary form must reproduce the above copyright notice.`
	for _, tc := range []struct {
		name, text string
		want       []string
	}{
		{"no known license", "All rights reserved.", nil},
		{"MIT in Go comments", "// Permission is hereby granted, free of charge,\n// to any person obtaining a copy\n// The above copyright notice and this permission notice shall be included", []string{"MIT"}},
		{"BSD with two clauses", bsd2, []string{"BSD-2-Clause"}},
		{"BSD with three clauses", bsd2 + " may be used to endorse or promote products", []string{"BSD-3-Clause"}},
		{"BSD with four clauses", bsd2 + " All advertising materials mentioning features", nil},
		{"GPL", "GNU GENERAL PUBLIC LICENSE\n Version 2, June 1991", []string{"GPL"}},
		{"AGPL", "GNU AFFERO GENERAL PUBLIC LICENSE", []string{"AGPL"}},
		{"MPL that mentions the GPL", "Mozilla Public License Version 2.0\n1. Definitions\n means either the GNU General Public License, the GNU Lesser General Public License", []string{"MPL-2.0"}},
		{"two licenses in one file", "Apache License\nVersion 2.0\nUnless required by applicable law or agreed to in writing\n---\n" + bsd2, []string{"Apache-2.0", "BSD-2-Clause"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := Identify(tc.text); !slices.Equal(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

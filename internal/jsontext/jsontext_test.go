package jsontext_test

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"testing"

	"github.com/imagepin/imagepin/internal/jsontext"
)

func TestElements(t *testing.T) {
	for text, want := range map[string][]string{
		`[]`: nil, ` [ ] `: nil, `[1]`: {"1"}, "[ 1 ,\t-2.5e3,null\n, true ]": {"1", "-2.5e3", "null", "true"},
		`["a,]","\"]","\\"]`: {`"a,]"`, `"\"]"`, `"\\"`}, `[[1,[2]],{"a":[3]},{}]`: {"[1,[2]]", `{"a":[3]}`, "{}"},
		`{"a":1}`: nil, `null`: nil, `"[1]"`: nil,
	} {
		var got []string
		for e := range jsontext.Elements([]byte(text)) {
			got = append(got, string(e))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}

func TestMembers(t *testing.T) {
	for text, want := range map[string][]string{
		`{}`: nil, `{"a":1}`: {`"a"`, "1"}, ` { "a" : [1,2] , "b\"}" : {"c":"}"} } `: {`"a"`, "[1,2]", `"b\"}"`, `{"c":"}"}`},
		`[1]`: nil, `{"a":1,"a":2}`: {`"a"`, "1", `"a"`, "2"},
	} {
		var got []string
		for name, value := range jsontext.Members([]byte(text)) {
			got = append(got, string(name), string(value))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}

// FuzzSplit compares the parts of a value with those of encoding/json.
func FuzzSplit(f *testing.F) {
	for _, text := range []string{`[1,"a\\",[2],{}]`, `{"a":{"b":[1]},"c":"\""}`, ` [ null ] `, "{}", "1", `[`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if !json.Valid(text) {
			for range jsontext.Elements(text) { // ends, and does not panic
			}
			for range jsontext.Members(text) {
			}
			return
		}
		trimmed := bytes.TrimLeft(text, " \t\r\n")
		switch trimmed[0] {
		case '[':
			var want, got []json.RawMessage
			if err := json.Unmarshal(text, &want); err != nil {
				t.Fatal(err)
			}
			for e := range jsontext.Elements(text) {
				got = append(got, e)
			}
			if len(got) != len(want) || len(want) > 0 && !reflect.DeepEqual(got, want) {
				t.Errorf("%s: got %s, want %s", text, got, want)
			}
		case '{':
			want, got := map[string]json.RawMessage{}, map[string]json.RawMessage{}
			if err := json.Unmarshal(text, &want); err != nil {
				t.Fatal(err)
			}
			for name, value := range jsontext.Members(text) {
				var key string
				if err := json.Unmarshal(name, &key); err != nil {
					t.Fatal(err)
				}
				got[key] = value
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s: got %s, want %s", text, got, want)
			}
		}
	})
}

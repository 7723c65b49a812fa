// Package jsontext splits a text in JSON into its parts without a copy of them: encoding/json needs many times the memory of a list
// with small elements.
package jsontext

import "iter"

// Elements returns the elements of a list, as they are written. list is valid JSON, see [encoding/json.Valid]. It returns nothing
// for another value.
func Elements(list []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		at := open(list, '[')
		for at < len(list) && list[at] != ']' {
			end := value(list, at)
			if end == at || !yield(list[at:end]) { // end is at only in an invalid text
				return
			}
			at = separator(list, end)
		}
	}
}

// Members returns the names, with their quotes, and the values of an object, as they are written. object is valid JSON, see
// [encoding/json.Valid]. It returns nothing for another value.
func Members(object []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(name, value []byte) bool) {
		at := open(object, '{')
		for at < len(object) && object[at] != '}' {
			end := value(object, at)
			from := separator(object, end)
			to := value(object, from)
			if end == at || !yield(object[at:end], object[from:to]) {
				return
			}
			at = separator(object, to)
		}
	}
}

// open returns where the content of a value begins that begins with a bracket, and the length of text for another value.
func open(text []byte, bracket byte) int {
	at := separator(text, 0)
	if at == len(text) || text[at] != bracket {
		return len(text)
	}
	return separator(text, at+1)
}

// separator returns the end of the white space, commas and colons at an offset.
func separator(text []byte, at int) int {
	for at < len(text) {
		switch text[at] {
		case ' ', '\t', '\r', '\n', ',', ':':
			at++
		default:
			return at
		}
	}
	return at
}

// value returns the end of the value that begins at an offset.
func value(text []byte, at int) int {
	for depth := 0; at < len(text); at++ {
		switch text[at] {
		case '"':
			for at++; at < len(text) && text[at] != '"'; at++ {
				if text[at] == '\\' {
					at++
				}
			}
			if depth == 0 {
				return min(at+1, len(text))
			}
		case '[', '{':
			depth++
		case ']', '}':
			if depth--; depth < 0 {
				return at
			}
			if depth == 0 {
				return at + 1
			}
		case ' ', '\t', '\r', '\n', ',':
			if depth == 0 {
				return at
			}
		}
	}
	return len(text)
}

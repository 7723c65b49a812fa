package config

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/imagepin/imagepin/internal/similar"
)

// unknownKeys returns an error for each unknown key in a strict decoding of a value, with the known key that was probably
// meant.
func unknownKeys(section string, unknown *toml.StrictMissingError, value any) []error {
	errs := make([]error, len(unknown.Errors))
	for i, e := range unknown.Errors {
		key := strings.Join(e.Key(), ".")
		text := fmt.Sprintf("unknown key %q", key)
		if meant := similarKey(reflect.TypeOf(value), e.Key()); meant != nil {
			text += fmt.Sprintf(" (did you mean %q?)", strings.Join(meant, "."))
		}
		errs[i] = &KeyError{Section: section, Err: errors.New(text), path: key}
	}
	return errs
}

// similarKey returns the key of a type that is most similar to an unknown key; nil if none is similar. Only the first
// unknown part of the key differs.
func similarKey(t reflect.Type, key []string) []string {
	for i, part := range key {
		switch t = elem(t); {
		case t.Kind() == reflect.Map:
			t = t.Elem()
			continue
		case t.Kind() != reflect.Struct:
			return nil
		}
		known := fields(t)
		if next, ok := known[part]; ok {
			t = next
			continue
		}
		best := similar.Closest(part, slices.Collect(maps.Keys(known)))
		if best == "" {
			return nil
		}
		return slices.Concat(key[:i], []string{best}, key[i+1:])
	}
	return nil
}

// elem returns the type that a TOML table is decoded into for t, which may be a pointer or a slice.
func elem(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	return t
}

// fields returns the types of a struct's fields by TOML key, with the fields of embedded structs.
func fields(t reflect.Type) map[string]reflect.Type {
	all := make(map[string]reflect.Type)
	for _, f := range reflect.VisibleFields(t) {
		if key, _, _ := strings.Cut(f.Tag.Get("toml"), ","); key != "" {
			all[key] = f.Type
		}
	}
	return all
}

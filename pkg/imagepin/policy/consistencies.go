package policy

import (
	"errors"
	"fmt"
	"strings"
)

// Consistencies is the value of a pod's [ConsistencyAnnotation]: a consistency for all images of the pod, and those for the
// images that globs match.
type Consistencies struct {
	all    Consistency // empty if there is none
	images []imageConsistency
}

type imageConsistency struct {
	glob        *Glob
	consistency Consistency
}

// maxConsistencies is the maximum length of a value in bytes. Tenants write it, and it is parsed for each call.
const maxConsistencies = 1024

// ParseConsistencies parses a list that commas separate. An item is a consistency, which is for all images of the pod and of
// which there is at most one, or "glob=consistency", see [Glob]: "workload, registry.example/mesh/*:*=off". Errors are of type
// *[Error].
func ParseConsistencies(text string) (c Consistencies, _ error) {
	if len(text) > maxConsistencies {
		return c, &Error{Key: ConsistencyAnnotation, Value: text[:16] + "…", Err: fmt.Errorf("has %d bytes, and a list has at most %d", len(text), maxConsistencies)}
	}
	for item := range strings.SplitSeq(text, ",") {
		item = strings.TrimSpace(item)
		if err := c.add(item); err != nil {
			return Consistencies{}, &Error{Key: ConsistencyAnnotation, Value: item, Err: err}
		}
	}
	return c, nil
}

func (c *Consistencies) add(item string) error {
	pattern, value, perImage := strings.Cut(item, "=") // no reference has one
	if !perImage {
		pattern, value = "", item
	}
	consistency := Consistency(strings.TrimSpace(value))
	if err := oneOf("", consistency, Off, Node, Workload); err != nil {
		return err.Err
	}
	if !perImage {
		if c.all != "" {
			return errors.New("is the second one for all images of the pod")
		}
		c.all = consistency
		return nil
	}
	glob, err := ParseGlob(strings.TrimSpace(pattern))
	if err != nil {
		return err
	}
	c.images = append(c.images, imageConsistency{glob, consistency})
	return nil
}

// Of returns the consistency for a normalized reference: that of the first glob that matches, otherwise that for all images. ok is
// false if there is none.
func (c Consistencies) Of(ref string) (_ Consistency, ok bool) {
	for _, i := range c.images {
		if i.glob.Match(ref) {
			return i.consistency, true
		}
	}
	return c.all, c.all != ""
}

// overrideConsistency returns a rule with the consistency that the annotation of a pod has for a reference. If the rule does not
// allow it, or the annotation is not valid, it returns the rule, and adds the annotation to ignored.
func (p *Policy) overrideConsistency(rule Rule, ref, text string, ignored []string) (Rule, []string) {
	all, err := ParseConsistencies(text)
	if err != nil {
		return rule, append(ignored, ConsistencyAnnotation)
	}
	c, ok := all.Of(ref)
	if !ok {
		return rule, ignored
	}
	by := rule
	by.Consistency = c
	return p.overridden(rule, by, ConsistencyAnnotation, ignored)
}

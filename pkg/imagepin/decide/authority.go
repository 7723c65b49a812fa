package decide

import (
	"context"
	"strings"

	"github.com/containerd/log"
	"github.com/distribution/reference"

	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// authorities returns who says which digest a reference means, in order of precedence.
func (d *Decider) authorities() [3]pin.Authority {
	return [3]pin.Authority{pin.Lock{Pins: d.pins}, d.cluster(), pin.Node{Pins: d.pins, Policy: d.policy}}
}

// question returns the question for a reference and a pod.
func (d *Decider) question(ref string, pod policy.Pod) pin.Question {
	effective, _ := d.policy().Decide(ref, pod)
	return pin.Question{Ref: ref, Pod: pod, Policy: effective}
}

// ask asks the authorities. One may send a request. It writes only if q.Record is set.
func (d *Decider) ask(ctx context.Context, q pin.Question) (pin.Answer, error) {
	answer, err := fold(d.authorities(), q, func(a pin.Authority, q pin.Question) (pin.Answer, bool, error) { return a.Ask(ctx, q) })
	if err != nil {
		return answer, err
	}
	if locked, ok := (pin.Lock{Pins: d.pins}).Look(q); ok {
		return locked, nil // also if the lock was applied during a request
	}
	return answer, nil
}

// look is ask from memory.
func (d *Decider) look(q pin.Question) pin.Answer {
	answer, _ := fold(d.authorities(), q, func(a pin.Authority, q pin.Question) (pin.Answer, bool, error) {
		answer, ok := a.Look(q)
		return answer, ok, nil
	})
	return answer
}

// fold returns the first answer that decides. If none does, it returns that of the node, with the pod and the scope of those before.
func fold(all [3]pin.Authority, q pin.Question, ask func(pin.Authority, pin.Question) (pin.Answer, bool, error)) (answer pin.Answer, _ error) {
	for _, a := range all {
		said, ok, err := ask(a, q)
		if err != nil || ok && said.Decides() {
			return said, err
		}
		if ok {
			answer, q.Pod, q.Policy.Scope = said, said.Pod, said.Scope
		}
	}
	return answer, nil
}

// request returns the request for a call, after the node's pin has been brought in line with the cluster's. It logs the annotations of
// the pod that are not allowed or not valid.
func (d *Decider) request(ctx context.Context, ref reference.Named, pod policy.Pod) (Request, error) {
	effective, ignored := d.policy().Decide(ref.String(), pod)
	answer, err := d.ask(ctx, pin.Question{Ref: ref.String(), Pod: pod, Policy: effective, Record: true})
	if err == nil && len(ignored) > 0 {
		log.G(ctx).WithField("ref", ref.String()).WithField("namespace", pod.Namespace).
			Warnf("ignoring pod annotations that are not allowed or not valid: %s", strings.Join(ignored, ", "))
	}
	effective.Scope = answer.Scope
	return Request{Ref: ref, Policy: effective, Pod: answer.Pod, Pin: answer.Pin, New: isNew(effective.Rule, answer), Unpinned: isUnpinned(effective.Rule, answer), err: answer.Err}, err
}

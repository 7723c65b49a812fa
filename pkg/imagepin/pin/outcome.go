package pin

// Outcome is how a question to the API server has ended.
type Outcome string

// The outcomes. The first four have an ImagePin.
const (
	// Won: this node has created the ImagePin.
	Won Outcome = "won"
	// Agreed: another node has created the ImagePin meanwhile, with the same digest.
	Agreed Outcome = "agreed"
	// Lost: another node has created the ImagePin meanwhile, with another digest.
	Lost Outcome = "lost"
	// Found: there was an ImagePin. A claim of a provisional pin that finds one with another digest has this outcome, too.
	Found Outcome = "found"
	// Missing: there is no ImagePin yet.
	Missing Outcome = "missing"
	// Unavailable: the API server did not answer, or refused all requests.
	Unavailable Outcome = "unavailable"
	// Refused: the API server refused this request, or the ImagePin is not for this owner.
	Refused Outcome = "refused"
)

// Outcomes lists all outcomes.
var Outcomes = []Outcome{Won, Agreed, Lost, Found, Missing, Unavailable, Refused}

/** Calls that run at once of one key or project: here, and in the other ingresses as they were last heard. */
export class Running {
  /** How the fleet knows it. */
  readonly name: string
  here = 0
  elsewhere = 0
  /** How many the fleet was last told. */
  told = 0
  isKnown = false
  heardAtMs = -Infinity

  constructor(name: string) {
    this.name = name
  }

  get all(): number {
    return this.here + this.elsewhere
  }

  /** The fleet has heard of `told`, and says how many run elsewhere. */
  hear(elsewhere: number, nowMs: number): void {
    this.elsewhere = elsewhere
    this.isKnown = true
    this.heardAtMs = nowMs
  }
}

import { describeSandbox } from '../../../support/sandbox/conformance.ts'

// Each run has its own interpreter in its own thread, so an attack cannot damage the interpreter of a later run. The additional run after each attack
// is therefore switched off, which saves half a second of CPU time.
describeSandbox('wasm', { isAliveAsked: false, each: 4 })

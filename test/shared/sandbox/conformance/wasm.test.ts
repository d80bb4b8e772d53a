import { describeSandbox } from '../../../support/sandbox/conformance.ts'

// Each run has an interpreter of its own in a thread of its own, half a second of processor time: asking after each attack would only cost.
describeSandbox('wasm', { isAliveAsked: false, each: 4 })

/** This file must contain the text `inject('docker')`. The test setup finds or starts a Docker daemon only if a test file contains this text. */
import { describeSandbox } from '../../../support/sandbox/conformance.ts'

// Each run has its own container, so an attack cannot damage the container of a later run. The additional run after each attack is therefore switched
// off, which saves a second of CPU time.
describeSandbox('docker', { isAliveAsked: false, each: 12 })

import { BULKHEADS } from './bulkheads/bulkheads.ts'
import { OVERLOAD } from './overload/overload.ts'
import { SCALE } from './scale/scale.ts'
import type { Section } from './section.ts'
import { SPEED } from './speed/speed.ts'
import { TENANTS_SECTION } from './tenants/tenants.ts'
import { TURNS } from './turns/turns.ts'

/** The parts of the benchmark that stand by themselves, in the order of the document. */
export const SECTIONS: readonly Section[] = [SPEED, TURNS, OVERLOAD, BULKHEADS, SCALE, TENANTS_SECTION]

import { join } from 'node:path'

const CACHE = join(import.meta.dirname, '../../../node_modules/.cache/compiled')

/** Environment of every child process of a test. The compile cache halves the cost of the hundreds of starts in a run. */
export const ENVIRONMENT = { PATH: process.env.PATH, NODE_COMPILE_CACHE: CACHE }

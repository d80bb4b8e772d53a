import { join } from 'node:path'

const CACHE = join(import.meta.dirname, '../../../node_modules/.cache/compiled')

/**
 * Environment variables of every child process of a test. The compile cache halves the start time of a process, and a test run starts hundreds of
 * processes.
 */
export const ENVIRONMENT = { PATH: process.env.PATH, NODE_COMPILE_CACHE: CACHE }

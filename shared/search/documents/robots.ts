import robotsParser from 'robots-parser'
import type { RobotsQuestion } from './message.ts'

/** The declared types of the package do not match its module format, so the function needs a cast. */
const parse = robotsParser as unknown as (url: string, text: string) => Robot

interface Robot {
  isAllowed(url: string, agent: string): boolean | undefined
}

export function allows({ robotsUrl, bytes, url, agent }: RobotsQuestion): boolean {
  return parse(robotsUrl, new TextDecoder().decode(bytes)).isAllowed(url, agent) !== false
}

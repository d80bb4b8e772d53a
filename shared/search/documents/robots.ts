import robotsParser from 'robots-parser'
import type { RobotsQuestion } from './message.ts'

/** Its types say that it is a module of another kind than it is. */
const parse = robotsParser as unknown as (url: string, text: string) => Robot

interface Robot {
  isAllowed(url: string, agent: string): boolean | undefined
}

/** What a robots.txt says of a page (RFC 9309); what it does not speak of is allowed. */
export function allows({ robotsUrl, bytes, url, agent }: RobotsQuestion): boolean {
  return parse(robotsUrl, new TextDecoder().decode(bytes)).isAllowed(url, agent) !== false
}

import { termOf } from './terms.ts'

/*
 * Groups of synonyms of general English. Words of special subjects are not included, because their meaning differs between subjects. An
 * embedding model (`embeddings`) finds further matches.
 */
const GROUPS = `
  begin began begun start commence launch initiate
  begin began begun start originate
  end stop finish terminate cease conclude
  create make build built generate produce
  create found establish institute set introduce
  invent devise design conceive create develop
  write wrote written author compose
  remove delete erase drop purge uninstall discard eliminate
  add append insert include attach
  show display print list output view
  change modify alter edit adjust amend update
  allow permit enable let
  forbid prohibit disallow deny refuse reject prevent block
  need require demand mandatory necessary
  maximum limit largest most cap upper ceiling
  minimum least smallest lower floor
  big large huge
  size length width extent
  cost price fee charge
  buy bought purchase acquire
  default standard preset initial
  name call title term
  error failure fault mistake problem
  fail break broke broken crash
  fix repair correct solve resolve
  find search locate look
  check verify test validate examine
  choose chose chosen select pick prefer
  fast quick rapid speed
  slow delay lag
  save store keep kept retain preserve
  folder directory
  computer machine host system
  program application software tool
  user person people
  company firm corporation business enterprise
  job task work
  replace substitute supersede succeed
  old former previous earlier
  new recent latest current
  use employ utilize apply
  help assist support aid
  explain describe
  purpose goal aim objective intend
  reason cause motive
  result outcome consequence effect
  happen occur
  send transmit deliver
  receive accept obtain
  connect link join attach
  split divide separate
  copy duplicate clone
  increase raise grow enlarge extend
  decrease reduce lower shrink
  key button
  leader head chief director president chair
  elect vote choose
  appoint nominate name designate
  member participant
  rule regulation policy law
  agreement contract treaty
  adopt ratify approve accept pass
  nickname codename alias
  keep hold retain
  document file text
  picture image photo graphic
  language tongue
  release publish issue version
  publish release
  country nation state
  city town
  die death dead
  born birth
  live reside dwell
  own possess belong
  kill terminate
  teach instruct
  doctor physician
  car vehicle automobile
  road street
  money fund payment
  pay payment
  year annual yearly
  day daily
  week weekly
  month monthly
  office bureau agency department
  disk drive storage
  memory ram
  secret confidential private
  secure safe protect
  permission right privilege access
  wait sleep pause
  duration period time long last
  distance far
  amount number quantity count
  part portion component piece section
  whole entire total
  example instance
  disadvantage drawback shortcoming downside
  advantage benefit merit
  difference distinction differ
  compatible compatibility
  setting option parameter configuration variable
  configure set setup
  command instruction
  message notification
  warn warning alert
  ignore skip disregard overlook
  hide conceal
  compress compact
  encrypt cipher encode
  password passphrase
  reboot restart
  log record journal
  backup copy
  meaning mean stand
  licence license
  postgres postgresql
  email mail
  colour color
  behaviour behavior
  centre center
  catalogue catalog
`

const groups = new Map<string, Set<string>>()
for (const line of GROUPS.trim().split('\n')) {
  const terms = line
    .trim()
    .split(/\s+/)
    .map(termOf)
    .filter((term) => term !== undefined)
  for (const term of terms) groups.set(term, new Set([...(groups.get(term) ?? []), ...terms]))
}

export function synonymsOf(term: string): ReadonlySet<string> {
  return groups.get(term) ?? NONE
}

const NONE: ReadonlySet<string> = new Set()

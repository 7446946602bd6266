// What every page has: times as people read them, things to copy, keys, and parts that change.
import { startCopying } from "./copying.js";
import { startKeys } from "./keys.js";
import { startLive } from "./live.js";
import { startForms } from "./forms.js";
import { startTimes, writeTimes } from "./times.js";
import { startUnfolding } from "./unfolding.js";

startTimes();
startCopying();
startKeys();
startForms();
startUnfolding();
startLive((root) => writeTimes(root));
